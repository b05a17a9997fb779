// Kernels loaded into contexts: one entry of a table for each context, filled row by row at first use.
#pragma once
#include "device/card.h"
#include "device/driver.h"
#include "table/row.h"

namespace fa3 {

struct Context {
  Card card;
  CUcontext handle;
  unsigned long long id;  // unlike the handle, never used twice in a process
  CUfunction functions[row_count];  // null until loaded; written under the table's lock, read atomically
  Context* next;                    // of the same bucket
};

// What a call is launched with: the driver, and the entry of the calling thread's current context.
struct Device {
  const Driver* driver;
  Context* context;
};

// Opens the driver, and makes the entry if needed. Refuses a missing driver (FA3_ERROR_NO_DRIVER), a missing context
// (FA3_ERROR_NO_CONTEXT) and a device that is not of compute capability 9.0 (FA3_ERROR_WRONG_DEVICE).
fa3_status find_device(Device& device);

// The card of the caller's question: with so many multiprocessors (assumed_card), or 0: the current context's device.
fa3_status find_card(int multiprocessors, Card& card);

// The row's kernel in that context. It is loaded if needed, unless `stream` captures (FA3_ERROR_NOT_LOADED).
fa3_status get_function(const Device& device, int row, CUstream stream, CUfunction& function);

// Loads every row that the library chooses itself.
fa3_status load_all(const Device& device);

}  // namespace fa3
