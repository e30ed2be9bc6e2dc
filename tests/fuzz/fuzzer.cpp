// libFuzzer's side: oomplan_fuzz --door=NAME [--slow=FOLDER] [flags of libFuzzer] [corpora].
//
// A text that takes more CPU time than its door allows is written to FOLDER, so that one slow text does not end the search for
// others.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "doors.hpp"

using namespace oomplan::fuzz;

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

constexpr double kSlower = 10;  // under the sanitizers, of an example of `answers`: 20.6 s, 2.1 s without them
const Door* chosen = nullptr;
std::string slow;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void keep(std::string_view text, double seconds) {
  std::fprintf(stderr, "slow: %.2f s\n", seconds);
  if (slow.empty()) return;
  char name[64];
  std::snprintf(name, sizeof name, "slow-%.2f-%016zx", seconds, std::hash<std::string_view>{}(text));
  std::ofstream(std::filesystem::path(slow) / name, std::ios::binary) << text;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** words) {
  for (int i = 1; i < *count; ++i) {
    const std::string_view word = (*words)[i];
    if (word.starts_with("--door=")) chosen = &door(word.substr(7));
    if (word.starts_with("--slow=")) slow = word.substr(7);
  }
  if (chosen != nullptr) return 0;
  for (const Door& each : doors()) std::printf("%s\n", std::string(each.name).c_str());
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const double began = cpu_seconds();
  chosen->put(text);
  if (const double took = cpu_seconds() - began; took > kSlower * chosen->seconds) keep(text, took);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  if (chosen->change == nullptr || seed % 8 == 0) return LLVMFuzzerMutate(data, size, most);
  const std::string changed = chosen->change({reinterpret_cast<const char*>(data), size}, seed / 8);
  const std::size_t length = std::min(changed.size(), most);
  std::copy_n(changed.data(), length, data);
  return length;
}
