--  Attention from Ada: on the CPU, checked against plain double precision, then on a Hopper GPU.
--
--    ../declarations.py ada ../../../include/fa3.h fa3.ads layout.adb
--    gnatmake attention.adb -largs -LFOLDER_OF_LIBFA3
with Ada.Command_Line;
with Ada.Exceptions;                        use Ada.Exceptions;
with Ada.Numerics.Long_Elementary_Functions; use Ada.Numerics.Long_Elementary_Functions;
with Ada.Text_IO;                           use Ada.Text_IO;
with Ada.Unchecked_Conversion;
with Cuda;
with Fa3;                                   use Fa3;
with Interfaces;                            use Interfaces;
with Interfaces.C;                          use Interfaces.C;
with Interfaces.C.Strings;                  use Interfaces.C.Strings;
with Layout;
with System;                                use System;

procedure Attention is

   Batch    : constant := 2;
   Seqlen_Q : constant := 40;
   Seqlen_K : constant := 48;
   Heads    : constant := 4;
   Heads_KV : constant := 2;
   Head_Dim : constant := 64;

   type BF16 is new Unsigned_16; --  as it is in memory

   --  Without gaps, and in C's order, as Ada's own is the same.
   type Queries is array (1 .. Batch, 1 .. Seqlen_Q, 1 .. Heads, 1 .. Head_Dim) of BF16 with Alignment => 16;
   type Keys is array (1 .. Batch, 1 .. Seqlen_K, 1 .. Heads_KV, 1 .. Head_Dim) of BF16 with Alignment => 16;
   type Sums is array (1 .. Batch, 1 .. Heads, 1 .. Seqlen_Q) of IEEE_Float_32;

   type Addresses is array (Positive range <>) of Address;

   Refused, Wrong : exception;

   procedure Check (Result : Status) is
   begin
      if Result /= OK then
         raise Refused with Value (Status_String (Result)) & ": " & Value (Last_Error_Message);
      end if;
   end Check;

   procedure Expect (Right : Boolean; What : String) is
   begin
      if not Right then
         raise Wrong with What;
      end if;
   end Expect;

   function Image (Number : Long_Long_Integer) return String is
      Text : constant String := Number'Image;
   begin
      return Text (Text'First + 1 .. Text'Last);
   end Image;

   --  Numbers

   function Bits_Of is new Ada.Unchecked_Conversion (IEEE_Float_32, Unsigned_32);
   function Float_Of is new Ada.Unchecked_Conversion (Unsigned_32, IEEE_Float_32);

   --  The nearest; of two, the even one.
   function To_BF16 (X : IEEE_Float_32) return BF16 is
      Bits : constant Unsigned_32 := Bits_Of (X);
   begin
      return BF16 (Shift_Right (Bits + 16#7fff# + (Shift_Right (Bits, 16) and 1), 16));
   end To_BF16;

   function Number (X : BF16) return Long_Float is
     (Long_Float (Float_Of (Shift_Left (Unsigned_32 (X), 16))));

   State : Long_Long_Integer := 1; --  of Lehmer's generator

   function Next return BF16 is --  between -2 and 2
   begin
      State := State * 16807 mod 2147483647;
      return To_BF16 (IEEE_Float_32 (Long_Float (State) / 2147483647.0 * 4.0 - 2.0));
   end Next;

   --  The problem, on the host

   Q, O : Queries;
   K, V : Keys;
   LSE  : Sums;

   procedure Fill is
   begin
      for X of Q loop
         X := Next;
      end loop;
      for X of K loop
         X := Next;
      end loop;
      for X of V loop
         X := Next;
      end loop;
   end Fill;

   function Checksum return Long_Long_Integer is
      Sum : Long_Long_Integer := 0;

      procedure Add (X : BF16) is
      begin
         Sum := (Sum * 31 + Long_Long_Integer (X)) mod 2147483647;
      end Add;
   begin
      for X of Q loop
         Add (X);
      end loop;
      for X of K loop
         Add (X);
      end loop;
      for X of V loop
         Add (X);
      end loop;
      return Sum;
   end Checksum;

   --  O and LSE of one row in double precision, compared with those of the library. A causal mask that ends in the
   --  bottom right corner: query I sees key J if J <= I + Seqlen_K - Seqlen_Q.
   procedure Compare_Row (B, I, H : Positive) is
      KV   : constant Positive := (H - 1) / (Heads / Heads_KV) + 1;
      P    : array (1 .. I + Seqlen_K - Seqlen_Q) of Long_Float;
      Sum  : Long_Float := 0.0;
      Want : Long_Float;
   begin
      for J in P'Range loop
         P (J) := 0.0;
         for D in 1 .. Head_Dim loop
            P (J) := P (J) + Number (Q (B, I, H, D)) * Number (K (B, J, KV, D));
         end loop;
         P (J) := Exp (P (J) / Sqrt (Long_Float (Head_Dim)));
         Sum := Sum + P (J);
      end loop;
      for D in 1 .. Head_Dim loop
         Want := 0.0;
         for J in P'Range loop
            Want := Want + P (J) / Sum * Number (V (B, J, KV, D));
         end loop;
         --  Half a unit in the last of bf16's 8 bits is at most 2^-8 of the number.
         Expect (abs (Number (O (B, I, H, D)) - Want) <= abs Want / 256.0 + 1.0e-6, "O is not as in double precision");
      end loop;
      Want := Log (Sum);
      Expect (abs (Long_Float (LSE (B, H, I)) - Want) <= 1.0e-6 * Long_Float'Max (1.0, abs Want),
              "LSE is not as in double precision");
   end Compare_Row;

   --  Parameters, for memory of the host or of the device

   function Packed (Data : Address; Dtype, Rank : Integer_32; Dim : Numbers) return Tensor is
      Item : Tensor := (Data => Data, Dtype => Dtype, Rank => Rank, Dim => Dim, others => <>);
   begin
      Check (Tensor_Pack (Item));
      return Item;
   end Packed;

   function Forward (Q, K, V, O, LSE : Address) return Forward_Params is
     (Struct_Size => Forward_Params'Size / 8,
      Q           => Packed (Q, Dtype_BF16, 4, (Batch, Seqlen_Q, Heads, Head_Dim, 0)),
      K           => Packed (K, Dtype_BF16, 4, (Batch, Seqlen_K, Heads_KV, Head_Dim, 0)),
      V           => Packed (V, Dtype_BF16, 4, (Batch, Seqlen_K, Heads_KV, Head_Dim, 0)),
      O           => Packed (O, Dtype_BF16, 4, (Batch, Seqlen_Q, Heads, Head_Dim, 0)),
      LSE         => Packed (LSE, Dtype_FP32, 3, (Batch, Heads, Seqlen_Q, 0, 0)),
      Mask        => Mask_Causal_Bottom_Right, --  Softmax_Scale 0: 1/sqrt(head_dim)
      others      => <>);

   procedure On_Cpu is
      Params : Forward_Params := Forward (Q'Address, K'Address, V'Address, O'Address, LSE'Address);
      Bytes  : size_t;
   begin
      Put_Line ("inputs: checksum " & Image (Checksum));
      Check (Reference_Forward (Params, 0));
      for B in 1 .. Batch loop
         for I in 1 .. Seqlen_Q loop
            for H in 1 .. Heads loop
               Compare_Row (B, I, H);
            end loop;
         end loop;
      end loop;
      Put_Line ("cpu: O and LSE as in double precision");

      Params.K.Stride (1) := Params.K.Stride (1) + 1;
      begin
         Check (Forward_Check (Params));
         raise Wrong with "a wrong stride was accepted";
      exception
         when Refusal : Refused => Put_Line ("refused: " & Exception_Message (Refusal));
      end;
      Params.K.Stride (1) := Params.K.Stride (1) - 1;

      Check (Forward_Check (Params));
      Check (Forward_Workspace_Size (Params, 132, Bytes));
      Put_Line ("workspace: " & Image (Long_Long_Integer (Bytes)) & " bytes on 132 multiprocessors");
   end On_Cpu;

   procedure On_Gpu is
      Q_Bytes   : constant size_t := Q'Size / 8;
      KV_Bytes  : constant size_t := K'Size / 8;
      LSE_Bytes : constant size_t := LSE'Size / 8;
      Bytes     : size_t;
      Largest   : Long_Float := 0.0;

      Device_Q, Device_K, Device_V, Device_O, Device_LSE, Workspace : Address;

      From_O   : Queries;
      From_LSE : Sums;
   begin
      Cuda.Load;
      if Forward_Workspace_Size
           (Forward (Null_Address, Null_Address, Null_Address, Null_Address, Null_Address), 0, Bytes) /= OK
      then
         raise Cuda.No_Gpu with Value (Last_Error_Message);
      end if;
      Device_Q := Cuda.Copy (Q'Address, Q_Bytes);
      Device_K := Cuda.Copy (K'Address, KV_Bytes);
      Device_V := Cuda.Copy (V'Address, KV_Bytes);
      Device_O := Cuda.Memory (Q_Bytes);
      Device_LSE := Cuda.Memory (LSE_Bytes);
      Workspace := Cuda.Memory (Bytes);
      Check (Fa3.Forward (Forward (Device_Q, Device_K, Device_V, Device_O, Device_LSE), Workspace, Bytes,
             Null_Address));
      Cuda.To_Host (From_O'Address, Device_O, Q_Bytes);
      Cuda.To_Host (From_LSE'Address, Device_LSE, LSE_Bytes);

      for X of O loop
         Largest := Long_Float'Max (Largest, abs Number (X));
      end loop;
      for B in 1 .. Batch loop
         for I in 1 .. Seqlen_Q loop
            for H in 1 .. Heads loop
               for D in 1 .. Head_Dim loop --  a few roundings to bf16, which has 8 bits, may lie between them
                  Expect (abs (Number (From_O (B, I, H, D)) - Number (O (B, I, H, D))) <= Largest / 64.0,
                          "O is not as on the CPU");
               end loop;
               Expect (abs (From_LSE (B, H, I) - LSE (B, H, I)) <= 1.0e-4, "LSE is not as on the CPU");
            end loop;
         end loop;
      end loop;
      Put_Line ("gpu: O and LSE as on the CPU");
      for Item of Addresses'(Device_Q, Device_K, Device_V, Device_O, Device_LSE, Workspace) loop
         Cuda.Free (Item);
      end loop;
   exception
      when Why : Cuda.No_Gpu => Put_Line ("no Hopper GPU: " & Exception_Message (Why));
   end On_Gpu;

begin
   if Ada.Command_Line.Argument_Count > 0 and then Ada.Command_Line.Argument (1) = "--layout" then
      Layout;
      return;
   end if;
   Fill;
   On_Cpu;
   On_Gpu;
exception
   when Problem : Refused | Wrong | Cuda.Failed =>
      Put_Line ("failed: " & Exception_Message (Problem));
      Ada.Command_Line.Set_Exit_Status (Ada.Command_Line.Failure);
end Attention;
