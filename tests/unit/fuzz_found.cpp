// Texts that a fuzzer found (tests/fuzz/found/DOOR/...), put through their doors again: nothing gets out, and none takes long.
#include <doctest/doctest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "../fuzz/doors.hpp"

using namespace oomplan;
namespace fs = std::filesystem;

namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

TEST_CASE("texts that a fuzzer found") {
  int looked = 0;
  for (const auto& folder : fs::directory_iterator(OOMPLAN_SOURCE_DIR "/tests/fuzz/found")) {
    if (!folder.is_directory()) continue;
    const fuzz::Door& door = fuzz::door(folder.path().filename().string());
    for (const auto& entry : fs::directory_iterator(folder)) {
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(in), {}};
      CAPTURE(entry.path().string());
      const double began = cpu_seconds();
      CHECK_NOTHROW(door.put(text));
      CHECK(cpu_seconds() - began < 2 * door.seconds);
      ++looked;
    }
  }
  CHECK(looked > 0);
}

TEST_CASE("every door takes nothing, and bytes that are no text") {
  for (const fuzz::Door& door : fuzz::doors()) {
    CAPTURE(std::string(door.name));
    for (const std::string& text : {std::string(), std::string(1, '\0'), std::string("\xff\xfe\n%%\n\x80\n%%\n\xed\xa0\x80"),
                                    std::string(5000, '['), std::string("\n%%\n\n%%\n")})
      CHECK_NOTHROW(door.put(text));
  }
}
