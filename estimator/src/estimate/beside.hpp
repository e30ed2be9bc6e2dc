// What the other processes of a GPU hold while one of them is at work.
#pragma once
#include "estimate/assemble.hpp"
#include "estimate/process_store.hpp"

namespace oomplan {

/// Fills Moment::beside of every phase of a class that several processes share: of the turn in which the phase takes most on the
/// device of this replay. REQUIRES: the reading is of the class.
void put_beside(GpuAnswer&, const Assembled&, std::size_t gpu_class, const Job&, GpuReading&, const SharedReplay&);

}  // namespace oomplan
