--  The little of the CUDA driver that is needed here, found when the program runs.
with Interfaces.C;
with System;

package Cuda is

   No_Gpu, Failed : exception;

   --  Makes the first device's primary context current in this task; raises No_Gpu.
   procedure Load;

   function Memory (Bytes : Interfaces.C.size_t) return System.Address;

   function Copy (From : System.Address; Bytes : Interfaces.C.size_t) return System.Address;

   --  Waits for what was enqueued on the default stream.
   procedure To_Host (To, From : System.Address; Bytes : Interfaces.C.size_t);

   procedure Free (Item : System.Address);

end Cuda;
