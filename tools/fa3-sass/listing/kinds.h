// What each instruction is for, as far as it can be told from the instruction alone.
#pragma once

#include "sass.h"

namespace sass {

enum class Kind {
  wgmma,
  arrive,
  wait,  // HGMMA/QGMMA, WARPGROUP.ARRIVE, WARPGROUP.DEPBAR
  mbarrier_wait,
  mbarrier_arrive,
  barrier,
  fence,  // SYNCS.PHASECHK, SYNCS.ARRIVE, BAR, FENCE/MEMBAR
  tma_load,
  tma_store,
  shared_memory,
  global_memory,
  local_memory,
  exp,
  special,
  maximum,
  convert,
  multiply,
  multiply_add,
  add,
  mask,
  shuffle,
  move,
  uniform,
  branch,
  setmaxnreg,
  umma,           // of sm_100: MMAs into tensor memory (tcgen05),
  umma_commit,    // an mbarrier told when they are done,
  tensor_memory,  // loads, stores and copies of that memory, and its allocation
  other,
};

enum class Lane { tensor, mufu, alu, memory, sync };

Kind kind_of(const Instruction& instruction);
Lane lane_of(Kind kind);
const char* word_for(Kind kind);  // a short note for a reader

}  // namespace sass
