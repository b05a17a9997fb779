with Ada.Unchecked_Conversion;
with Interfaces.C; use Interfaces.C;
with System;       use System;

package body Cuda is

   pragma Linker_Options ("-ldl");
   function Dlopen (File : char_array; Mode : int) return Address
      with Import, Convention => C, External_Name => "dlopen";
   function Dlsym (Library : Address; Name : char_array) return Address
      with Import, Convention => C, External_Name => "dlsym";
   RTLD_NOW : constant int := 2;

   type Init_Function is access function (Flags : unsigned) return int with Convention => C;
   type Device_Function is access function (Device : out int; Ordinal : int) return int with Convention => C;
   type Retain_Function is access function (Context : out Address; Device : int) return int with Convention => C;
   type Current_Function is access function (Context : Address) return int with Convention => C;
   type Alloc_Function is access function (Item : out Address; Bytes : size_t) return int with Convention => C;
   type Free_Function is access function (Item : Address) return int with Convention => C;
   type Copy_Function is access function (To, From : Address; Bytes : size_t) return int with Convention => C;

   function As_Init is new Ada.Unchecked_Conversion (Address, Init_Function);
   function As_Device is new Ada.Unchecked_Conversion (Address, Device_Function);
   function As_Retain is new Ada.Unchecked_Conversion (Address, Retain_Function);
   function As_Current is new Ada.Unchecked_Conversion (Address, Current_Function);
   function As_Alloc is new Ada.Unchecked_Conversion (Address, Alloc_Function);
   function As_Free is new Ada.Unchecked_Conversion (Address, Free_Function);
   function As_Copy is new Ada.Unchecked_Conversion (Address, Copy_Function);

   Cu_Mem_Alloc         : Alloc_Function;
   Cu_Mem_Free          : Free_Function;
   Cu_Memcpy_To_Device  : Copy_Function;
   Cu_Memcpy_To_Host    : Copy_Function;

   procedure Load is
      Library : constant Address := Dlopen (To_C ("libcuda.so.1"), RTLD_NOW);

      function Find (Name : String) return Address is
         Found : constant Address := Dlsym (Library, To_C (Name));
      begin
         return (if Found /= Null_Address then Found else raise No_Gpu with "the driver has no " & Name);
      end Find;

      Device  : int;
      Context : Address;
   begin
      if Library = Null_Address then
         raise No_Gpu with "libcuda.so.1 cannot be loaded";
      end if;
      Cu_Mem_Alloc := As_Alloc (Find ("cuMemAlloc_v2"));
      Cu_Mem_Free := As_Free (Find ("cuMemFree_v2"));
      Cu_Memcpy_To_Device := As_Copy (Find ("cuMemcpyHtoD_v2"));
      Cu_Memcpy_To_Host := As_Copy (Find ("cuMemcpyDtoH_v2"));
      if As_Init (Find ("cuInit")).all (0) /= 0 or else As_Device (Find ("cuDeviceGet")).all (Device, 0) /= 0 then
         raise No_Gpu with "the driver finds no device";
      end if;
      if As_Retain (Find ("cuDevicePrimaryCtxRetain")).all (Context, Device) /= 0
        or else As_Current (Find ("cuCtxSetCurrent")).all (Context) /= 0
      then
         raise No_Gpu with "the device has no context";
      end if;
   end Load;

   procedure Check (Call : String; Error : int) is
   begin
      if Error /= 0 then
         raise Failed with Call & ": CUDA error" & Error'Image;
      end if;
   end Check;

   function Memory (Bytes : size_t) return Address is
      Item : Address;
   begin
      Check ("cuMemAlloc", Cu_Mem_Alloc (Item, Bytes));
      return Item;
   end Memory;

   function Copy (From : Address; Bytes : size_t) return Address is
      To : constant Address := Memory (Bytes);
   begin
      Check ("cuMemcpyHtoD", Cu_Memcpy_To_Device (To, From, Bytes));
      return To;
   end Copy;

   procedure To_Host (To, From : Address; Bytes : size_t) is
   begin
      Check ("cuMemcpyDtoH", Cu_Memcpy_To_Host (To, From, Bytes));
   end To_Host;

   procedure Free (Item : Address) is
   begin
      Check ("cuMemFree", Cu_Mem_Free (Item));
   end Free;

end Cuda;
