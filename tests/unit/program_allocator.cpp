// The allocator's rules one at a time, with arithmetic by hand, and the settings text.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "program/allocator.hpp"

using namespace oomplan;

namespace {

using Allocator = CachingAllocator;
constexpr SegmentAction kAlloc = SegmentAction::alloc, kFree = SegmentAction::free;

AllocatorSettings limit(Bytes bytes) {
  AllocatorSettings s;
  s.device_limit = bytes;
  return s;
}

std::string message(std::string_view text) {
  try {
    parse_allocator_settings(text, {"job.yaml", 3, 5, "env.PYTORCH_CUDA_ALLOC_CONF"});
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

void check_invariants(const Allocator& a) {
  Bytes reserved = 0, allocated = 0, requested = 0, active = 0, end = std::numeric_limits<Bytes>::min();
  for (const auto& s : a.state()) {
    REQUIRE(s.address >= end);
    Bytes sum = 0;
    bool last_free = false;
    for (const auto& b : s.blocks) {
      REQUIRE(b.size > 0);
      REQUIRE(b.size % 512 == 0);
      const bool free = b.state == BlockState::inactive;
      REQUIRE(!(free && last_free));
      last_free = free;
      sum += b.size;
      if (b.state == BlockState::active) {
        REQUIRE(b.requested <= b.size);
        allocated += b.size;
        requested += b.requested;
      }
      active += free ? 0 : b.size;
    }
    REQUIRE(sum == s.bytes);
    reserved += s.bytes;
    end = s.address + s.bytes;
  }
  const auto& c = a.counters();
  REQUIRE(c.reserved == reserved);
  REQUIRE(c.allocated == allocated);
  REQUIRE(c.requested == requested);
  REQUIRE(c.active == active);
}

}  // namespace

TEST_CASE("sizes are rounded to 512 bytes, or to steps between powers of two") {
  const Allocator plain{AllocatorSettings{}};
  CHECK(plain.rounded(1) == 512);
  CHECK(plain.rounded(512) == 512);
  CHECK(plain.rounded(513) == 1024);
  CHECK(plain.rounded(kMiB + 1) == kMiB + 512);
  const Allocator four{parse_allocator_settings("roundup_power2_divisions:4")};
  CHECK(four.rounded(1200 * kKiB) == 1280 * kKiB);  // steps of 256 KiB above 1 MiB
  CHECK(four.rounded(2 * kMiB) == 2 * kMiB);
  CHECK(four.rounded(2048) == 2048);
  CHECK(four.rounded(1025) == 1536);  // not above 4 * 512: plain
  const Allocator one{parse_allocator_settings("roundup_power2_divisions:1")};
  CHECK(one.rounded(1200 * kKiB + 1) == 1200 * kKiB + 512);
}

TEST_CASE("segments: 2 MiB for small requests, 20 MiB up to 10, then multiples of 2 MiB") {
  const auto segment = [](Bytes bytes) {
    Allocator a{AllocatorSettings{}};
    a.allocate(bytes);
    return a.counters().reserved;
  };
  CHECK(segment(1) == 2 * kMiB);
  CHECK(segment(kMiB) == 2 * kMiB);
  CHECK(segment(kMiB + 1) == 20 * kMiB);
  CHECK(segment(10 * kMiB - 512) == 20 * kMiB);
  CHECK(segment(10 * kMiB) == 10 * kMiB);
  CHECK(segment(10 * kMiB + 1) == 12 * kMiB);
}

TEST_CASE("a rest of at most 1 MiB stays with a large block and counts as allocated") {
  Allocator a{AllocatorSettings{}};
  a.allocate(31 * kMiB);
  CHECK(a.counters().allocated == 32 * kMiB);
  CHECK(a.counters().requested == 31 * kMiB);
  a.allocate(18 * kMiB + 1);
  CHECK(a.counters().allocated == 32 * kMiB + 18 * kMiB + 512);  // the rest of 2 MiB - 512 is cut off
}

TEST_CASE("best fit; of equal blocks the lowest address") {
  Allocator a{AllocatorSettings{}};
  auto* x = a.allocate(12 * kMiB);
  auto* y = a.allocate(12 * kMiB);
  auto* z = a.allocate(40 * kMiB);
  const Bytes low = std::min(Allocator::address(x), Allocator::address(y));
  CHECK(Allocator::address(y) < Allocator::address(x));  // new segments lie below
  a.free(x);
  a.free(y);
  a.free(z);
  CHECK(Allocator::address(a.allocate(11 * kMiB + kMiB / 2)) == low);
  CHECK(a.counters().reserved == 64 * kMiB);
  AllocatorSettings up;
  up.rising_addresses = true;
  Allocator b{up};
  auto* first = b.allocate(12 * kMiB);
  CHECK(Allocator::address(first) < Allocator::address(b.allocate(12 * kMiB)));
}

TEST_CASE("streams and private pools keep their free blocks apart") {
  Allocator a{AllocatorSettings{}};
  a.free(a.allocate(12 * kMiB, 0));
  a.allocate(12 * kMiB, 1);
  a.free(a.allocate(12 * kMiB, 0, 1));
  CHECK(a.counters().reserved == 36 * kMiB);
  a.allocate(12 * kMiB, 0, 1);
  a.allocate(12 * kMiB, 0, 0);
  CHECK(a.counters().reserved == 36 * kMiB);
}

TEST_CASE("a refusal releases everything that is free, once, and tries again") {
  Allocator a{limit(64 * kMiB)};
  std::vector<SegmentEvent> log;
  auto* x = a.allocate(30 * kMiB);
  auto* y = a.allocate(30 * kMiB);
  a.free(x);
  a.free(y);
  a.log_segments(&log);
  auto* z = a.allocate(40 * kMiB);
  REQUIRE(z != nullptr);
  CHECK(a.counters().retries == 1);
  CHECK(a.counters().reserved == 40 * kMiB);
  CHECK(a.counters().refused == 100 * kMiB);
  REQUIRE(log.size() == 3);
  CHECK(log[0].action == kFree);
  CHECK(log[0].address < log[1].address);
  CHECK(log[2].action == kAlloc);
  CHECK(a.allocate(30 * kMiB) == nullptr);
  CHECK(a.counters().ooms == 1);
  CHECK(a.counters().retries == 2);
  CHECK(a.allocate(24 * kMiB) != nullptr);  // it stays usable
  check_invariants(a);
}

TEST_CASE("what others hold counts against the device") {
  Allocator a{limit(64 * kMiB)};
  CHECK(a.set_outside(40 * kMiB));
  CHECK(a.allocate(30 * kMiB) == nullptr);
  CHECK(a.set_outside(30 * kMiB));
  CHECK(a.allocate(30 * kMiB) != nullptr);
  CHECK_FALSE(a.set_outside(36 * kMiB));
  CHECK(a.outside() == 30 * kMiB);
  CHECK(a.counters().device_peak == 60 * kMiB);
}

TEST_CASE("a free that another stream still uses keeps its block") {
  Allocator a{limit(64 * kMiB)};
  auto* x = a.allocate(30 * kMiB);
  a.free_later(x);
  CHECK(a.counters().allocated == 0);
  CHECK(a.counters().active == 30 * kMiB);
  auto* y = a.allocate(30 * kMiB);  // not the block of x
  CHECK(a.counters().reserved == 60 * kMiB);
  check_invariants(a);
  a.complete(x);
  CHECK(a.counters().active == 30 * kMiB);
  CHECK(a.allocate(30 * kMiB) == x);
  a.free_later(y);
  CHECK(a.allocate(31 * kMiB) != nullptr);  // the retry waits for pending frees
  CHECK(a.counters().retries == 1);
  CHECK_THROWS_AS(a.complete(x), Defect);
}

TEST_CASE("private pools keep what they have until they are retired") {
  Allocator a{AllocatorSettings{}};
  a.free(a.allocate(12 * kMiB, 0, 2));
  a.free(a.allocate(12 * kMiB));
  a.empty_cache();
  CHECK(a.counters().reserved == 12 * kMiB);
  a.retire_pool(2);
  a.empty_cache();
  CHECK(a.counters().reserved == 0);
}

TEST_CASE("a memory fraction refuses before the driver is asked") {
  AllocatorSettings s;
  s.device_total = 100 * kMiB;
  s.memory_fraction = 0.5;
  Allocator a{s};
  CHECK(a.allocate(40 * kMiB) != nullptr);
  CHECK(a.allocate(12 * kMiB) == nullptr);
  CHECK(a.allocate(10 * kMiB) != nullptr);
}

TEST_CASE("expandable segments grow page by page and give whole pages back") {
  AllocatorSettings s;
  s.expandable_segments = true;
  Allocator a{s};
  std::vector<SegmentEvent> log;
  a.log_segments(&log);
  auto* x = a.allocate(30 * kMiB);  // two pages of 20 MiB
  auto* y = a.allocate(30 * kMiB);  // needs 20 more
  CHECK(a.counters().reserved == 60 * kMiB);
  CHECK(a.counters().allocated == 60 * kMiB);
  CHECK(Allocator::address(y) == Allocator::address(x) + 30 * kMiB);
  a.free(x);
  a.empty_cache();  // the second page is shared with y
  CHECK(a.counters().reserved == 40 * kMiB);
  REQUIRE(log.size() == 3);
  CHECK(log[2] == SegmentEvent{SegmentAction::unmap, Allocator::address(y) - 30 * kMiB, 20 * kMiB, 0, 0});
  check_invariants(a);
  auto* z = a.allocate(25 * kMiB);  // fits into the gap and the rest of the page
  CHECK(Allocator::address(z) == Allocator::address(y) - 30 * kMiB);
  CHECK(a.counters().reserved == 60 * kMiB);
  a.free(y);
  a.free(z);
  a.empty_cache();
  CHECK(a.counters().reserved == 0);
  CHECK(a.state().empty());
}

TEST_CASE("a random stream of requests keeps the books in order") {
  for (int turn = 0; turn < 12; ++turn) {
    CAPTURE(turn);
    AllocatorSettings s = parse_allocator_settings(turn % 4 == 1   ? "expandable_segments:True"
                                                   : turn % 4 == 2 ? "max_split_size_mb:64"
                                                   : turn % 4 == 3 ? "garbage_collection_threshold:0.6,roundup_power2_divisions:8"
                                                                   : "");
    s.device_total = 1536 * kMiB;
    s.memory_fraction = turn % 4 == 3 ? 1.0 : 0.0;
    s.device_limit = turn % 3 == 0 ? 1024 * kMiB : s.device_total;
    s.rising_addresses = turn % 2 == 1;
    Allocator a{s};
    std::mt19937_64 random(static_cast<std::uint64_t>(turn));
    std::vector<Allocator::Block*> live;
    for (int i = 0; i < 3000; ++i) {
      const auto dice = random() % 100;
      if (dice < 52 || live.empty()) {
        const Bytes size = 1 + static_cast<Bytes>(random() % (std::uint64_t{1} << (5 + random() % 22)));
        if (auto* b = a.allocate(size, static_cast<int>(random() % 3), random() % 10 == 0)) live.push_back(b);
      } else if (dice < 99) {
        const auto at = random() % live.size();
        if (dice < 90) {
          a.free(live[at]);
        } else {
          a.free_later(live[at]);
        }
        live[at] = live.back();
        live.pop_back();
      } else {
        a.empty_cache();
      }
      REQUIRE(a.counters().reserved <= s.device_limit);
      if (i % 50 == 0) check_invariants(a);
    }
    for (auto* b : live) a.free(b);
    a.retire_pool(1);
    a.empty_cache();
    CHECK(a.counters().reserved == 0);
    CHECK(a.counters().allocated == 0);
    CHECK(a.state().empty());
  }
}

TEST_CASE("many free blocks are kept in order") {
  Allocator a{AllocatorSettings{}};
  std::vector<Allocator::Block*> blocks;
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) blocks.push_back(a.allocate(512 * (1 + static_cast<Bytes>(random() % 2000))));
  for (std::size_t i = 0; i < blocks.size(); i += 2) a.free(blocks[i]);  // no two are neighbours
  check_invariants(a);
  const Bytes before = a.counters().reserved;
  for (std::size_t i = 0; i < blocks.size(); i += 2) a.allocate(Allocator::size(blocks[i]) > 0 ? 512 : 0);
  CHECK(a.counters().reserved == before);
  check_invariants(a);
}

TEST_CASE("a restored state goes on as the one it was taken from") {
  Allocator a{AllocatorSettings{}};
  std::vector<Allocator::Block*> live;
  for (int i = 1; i <= 40; ++i) live.push_back(a.allocate(i * 700 * kKiB, i % 2));
  for (std::size_t i = 0; i < live.size(); i += 3) a.free(live[i]);
  const auto state = a.state();
  Allocator b{AllocatorSettings{}};
  const auto blocks = b.restore(state);
  CHECK(b.state() == state);
  CHECK(b.counters().allocated == a.counters().allocated);
  CHECK(b.counters().reserved == a.counters().reserved);
  CHECK(blocks.size() == live.size() - (live.size() + 2) / 3);
  CHECK(Allocator::address(a.allocate(5 * kMiB)) == Allocator::address(b.allocate(5 * kMiB)));
}

TEST_CASE("the settings text of PyTorch is understood") {
  CHECK(parse_allocator_settings("") == AllocatorSettings{});
  CHECK(parse_allocator_settings("backend:native") == AllocatorSettings{});
  CHECK_FALSE(parse_allocator_settings("backend:cudaMallocAsync").native);
  const auto s = parse_allocator_settings(
      "expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8,max_non_split_rounding_mb:32,"
      "pinned_use_cuda_host_register:True,pinned_num_register_threads:8,");
  CHECK(s.expandable_segments);
  CHECK(s.max_split_size == 128 * kMiB);
  CHECK(s.max_non_split_rounding == 32 * kMiB);
  CHECK(s.garbage_collection_threshold == 0.8);
  const auto d = parse_allocator_settings("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_power2_divisions;
  CHECK(d == std::array<int, 16>{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8});
  CHECK(parse_allocator_settings("expandable_segments:False", {}, s).max_split_size == 128 * kMiB);
}

TEST_CASE("a settings text that PyTorch would refuse is an input error that names place and nearest spelling") {
  CHECK(message("expandable_segment:True").find("job.yaml:3:5") == 0);
  CHECK(message("expandable_segment:True").find("did you mean 'expandable_segments'") != std::string::npos);
  CHECK(message("expandable_segments:true").find("True or False") != std::string::npos);
  CHECK(message("max_split_size_mb:12x").find("max_split_size_mb:12x") != std::string::npos);
  CHECK(message("max_split_size_mb:8").find("at least 20") != std::string::npos);
  CHECK(message("max_split_size_mb").find("without a value") != std::string::npos);
  CHECK(message("garbage_collection_threshold:1.5").find("below 1") != std::string::npos);
  CHECK(message("garbage_collection_threshold:nan").find("below 1") != std::string::npos);
  CHECK(message("roundup_power2_divisions:3") != "");
  CHECK(message("roundup_power2_divisions:[256:1,512]") != "");
  CHECK(message("roundup_power2_divisions:[300:1]") != "");
  CHECK(message("roundup_power2_divisions:[256:1") != "");
  CHECK(message("backend:async").find("native or cudaMallocAsync") != std::string::npos);
  CHECK(message(",,") != "");
  CHECK(message("max_split_size_mb:99999999999999999999") != "");
  const std::string two = message("foo:1,max_split_size_mb:x");  // all problems, a line each
  CHECK(std::count(two.begin(), two.end(), '\n') == 1);
}
