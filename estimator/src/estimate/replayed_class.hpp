// The processes of one class of GPUs, replayed beside each other, and the class's figures set by it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "estimate/assemble.hpp"
#include "estimate/process_store.hpp"
#include "program/allocator.hpp"

namespace oomplan {

/// How far a class is explained.
enum class Explain : std::uint8_t {
  all,
  if_it_fits,  ///< the class that does not fit is left half explained
};

/// What a process of these GPUs starts with, on a device without a limit.
AllocatorSettings settings_of(const Job&, const GpuAnswer&);

/// Where a process of the class runs out of memory on its GPU; nothing where none does. One replay; nothing is set.
struct RunsOut {
  std::string phase;
  Bytes asked = 0;  ///< bytes of the request for which there was no memory
};
std::optional<RunsOut> runs_out(const Assembled&, std::size_t gpu_class, const Job&);
/// Do the processes of the class run out of memory nowhere on their GPU?
bool runs_through(const Assembled&, std::size_t gpu_class, const Job&);

/// False: it was to be explained if it fits, and does not.
/// `lists`: with what lives at the worst moments.
bool explain_class(Assembled&, std::size_t gpu_class, const Job&, ProcessStore&, Explain = Explain::all, bool lists = true);

/// What the GPUs of the class lack by the figures that they have; less than 0: they have that much to spare.
Bytes lack_of(const GpuAnswer&);

/// Numbers of the classes, the one that lacks most first.
std::vector<std::size_t> by_lack(const Assembled&);

/// Explains the class if it may lack more than `most`; else its figures stay as they are: it lacks no more on a device of any
/// size. As explain_class() otherwise.
bool explain_if_above(Assembled&, std::size_t gpu_class, const Job&, ProcessStore&, Bytes most, Explain = Explain::all,
                      bool lists = false);

}  // namespace oomplan
