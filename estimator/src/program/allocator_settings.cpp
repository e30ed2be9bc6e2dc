// The text of PYTORCH_CUDA_ALLOC_CONF: "name:value,name:value", where one value may be a list in brackets. Names, limits and the
// meaning of a list are those of c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp of PyTorch (2.2 to 2.13).
#include <algorithm>
#include <bit>
#include <charconv>
#include <optional>
#include <string>

#include "program/allocator.hpp"
#include "units/enums.hpp"

namespace oomplan {
namespace {

enum class Value : std::uint8_t { boolean, whole, power_of_two, fraction, divisions, backend };

struct OptionRow {
  std::string_view name;
  Value value;
  std::int64_t least = 0;                             ///< of whole numbers
  void (*set)(AllocatorSettings&, double) = nullptr;  ///< nullptr: changes no sizes on the device
};

constexpr OptionRow kOptions[] = {
    {"expandable_segments", Value::boolean, 0, [](AllocatorSettings& s, double v) { s.expandable_segments = v != 0; }},
    {"max_split_size_mb", Value::whole, 20,
     [](AllocatorSettings& s, double v) { s.max_split_size = static_cast<Bytes>(v) * kMiB; }},
    {"max_non_split_rounding_mb", Value::whole, 20,
     [](AllocatorSettings& s, double v) { s.max_non_split_rounding = static_cast<Bytes>(v) * kMiB; }},
    {"large_segment_size_mb", Value::whole, 20,
     [](AllocatorSettings& s, double v) { s.large_segment_size = static_cast<Bytes>(v) * kMiB; }},
    {"garbage_collection_threshold", Value::fraction, 0,
     [](AllocatorSettings& s, double v) { s.garbage_collection_threshold = v; }},
    {"per_process_memory_fraction", Value::fraction, 0, [](AllocatorSettings& s, double v) { s.memory_fraction = v; }},
    {"roundup_power2_divisions", Value::divisions, 0, nullptr},
    {"backend", Value::backend, 0, nullptr},
    {"release_lock_on_cudamalloc", Value::boolean, 0, nullptr},
    {"release_lock_on_hipmalloc", Value::boolean, 0, nullptr},
    {"pinned_use_cuda_host_register", Value::boolean, 0, nullptr},
    {"pinned_use_hip_host_register", Value::boolean, 0, nullptr},
    {"pinned_use_background_threads", Value::boolean, 0, nullptr},
    {"pinned_num_register_threads", Value::power_of_two, 1, nullptr},
    {"pinned_reserve_segment_size_mb", Value::whole, 1, nullptr},
    {"graph_capture_record_stream_reuse", Value::boolean, 0, nullptr},
};
constexpr std::int64_t kMostMiB = std::int64_t{1} << 30;  // a PiB

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty() || value < 0) return std::nullopt;
  return value;
}

std::optional<double> decimal_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

bool power_of_two(std::int64_t n) { return n > 0 && std::has_single_bit(static_cast<std::uint64_t>(n)); }

class Parser {
 public:
  Parser(std::string_view text, const Place& place, AllocatorSettings base) : place_(place), settings_(base) {
    for (const char c : text)
      if (c != ' ' && c != '\t') text_ += c;
  }

  AllocatorSettings run() {
    std::string_view rest = text_;
    while (!rest.empty()) {
      const auto [item, after] = cut(rest, ',');
      rest = after;
      if (item.empty()) {
        fail("", "an option between the commas", "");
        continue;
      }
      const auto colon = item.find(':');
      option(item.substr(0, colon), colon == std::string_view::npos ? std::string_view{} : item.substr(colon + 1),
             colon != std::string_view::npos);
    }
    if (!problems_.empty()) throw InputError(std::move(problems_));
    return settings_;
  }

 private:
  /// Up to the first `separator` outside brackets, and what follows it.
  static std::pair<std::string_view, std::string_view> cut(std::string_view text, char separator) {
    int depth = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      depth += text[i] == '[' ? 1 : text[i] == ']' ? -1 : 0;
      if (text[i] == separator && depth <= 0) return {text.substr(0, i), text.substr(i + 1)};
    }
    return {text, {}};
  }

  void fail(std::string found, std::string expected, std::string nearest) {
    problems_.push_back(
        {place_, std::move(found), std::move(expected), std::move(nearest), "in PYTORCH_CUDA_ALLOC_CONF '" + text_ + "'"});
  }
  void bad(std::string_view name, std::string_view value, std::string expected) {
    fail("'" + std::string(name) + ":" + std::string(value) + "'", std::move(expected), "");
  }

  void option(std::string_view name, std::string_view value, bool has_value) {
    const auto row = std::find_if(std::begin(kOptions), std::end(kOptions), [&](const OptionRow& r) { return r.name == name; });
    if (row == std::end(kOptions)) {
      std::vector<std::string> names;
      for (const auto& each : kOptions) names.emplace_back(each.name);
      const std::string near = nearest(name, names);
      fail("option '" + std::string(name) + "'", "one of " + list_of(names), near);
      return;
    }
    if (!has_value || value.empty()) {
      fail("'" + std::string(name) + "' without a value", std::string(name) + ":VALUE", "");
      return;
    }
    switch (row->value) {
      case Value::boolean:
        if (value != "True" && value != "False") {
          const std::string near = nearest(value, {"True", "False"});
          fail("'" + std::string(name) + ":" + std::string(value) + "'", "True or False", near);
        } else if (row->set != nullptr) {
          row->set(settings_, value == "True" ? 1 : 0);
        }
        break;
      case Value::whole: {
        const auto number = whole_number(value);
        if (!number || *number < row->least || *number > kMostMiB) {
          bad(name, value, "a whole number of at least " + std::to_string(row->least));
        } else if (row->set != nullptr) {
          row->set(settings_, static_cast<double>(*number));
        }
        break;
      }
      case Value::power_of_two:
        if (const auto number = whole_number(value); !number || !power_of_two(*number)) bad(name, value, "a power of two");
        break;
      case Value::fraction:
        if (const auto number = decimal_number(value);
            !number || !(*number > 0) || *number > 1 || (*number == 1 && name == "garbage_collection_threshold")) {
          bad(name, value, "a number above 0 and below 1");
        } else {
          row->set(settings_, *number);
        }
        break;
      case Value::divisions:
        divisions(name, value);
        break;
      case Value::backend:
        if (value != "native" && value != "cudaMallocAsync") {
          fail("'backend:" + std::string(value) + "'", "native or cudaMallocAsync",
               nearest(value, {"native", "cudaMallocAsync"}));
        } else {
          settings_.native = value == "native";
        }
        break;
    }
  }

  /// A power of two for all sizes, or [256:1,512:2,>:8]: from 256 MiB on 1, from 512 MiB on 2, above that 8. The first value also
  /// holds below its size.
  void divisions(std::string_view name, std::string_view value) {
    auto& table = settings_.roundup_power2_divisions;
    constexpr std::int64_t kMost = 1 << 20;
    if (value.front() != '[') {
      const auto number = whole_number(value);
      if (!number || !power_of_two(*number) || *number > kMost)
        return bad(name, value, "a power of two, or a list [SIZE_MB:DIVISIONS,...]");
      table.fill(static_cast<int>(*number));
      return;
    }
    if (value.back() != ']') return bad(name, value, "a closing ']'");
    std::string_view rest = value.substr(1, value.size() - 2);
    std::size_t last = 0;
    bool first = true;
    while (!rest.empty()) {
      const auto [item, after] = cut(rest, ',');
      rest = after;
      const auto colon = item.find(':');
      const auto number = colon == std::string_view::npos ? std::nullopt : whole_number(item.substr(colon + 1));
      if (!number || (*number != 0 && !power_of_two(*number)) || *number > kMost)
        return bad(name, item, "SIZE_MB:DIVISIONS with 0 or a power of two as divisions");
      const auto key = item.substr(0, colon);
      const int d = static_cast<int>(*number);
      if (key == ">") {
        std::fill(table.begin() + static_cast<std::ptrdiff_t>(std::min(last + 1, table.size())), table.end(), d);
        continue;
      }
      const auto size = whole_number(key);
      if (!size || !power_of_two(*size)) return bad(name, item, "a power of two as size in MiB, or '>'");
      const auto index = std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(*size))) - 1,
                                               table.size() - 1);
      if (first) std::fill(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(index), d);
      first = false;
      table[index] = d;
      last = index;
    }
  }

  Place place_;
  std::string text_;
  AllocatorSettings settings_;
  std::vector<Problem> problems_;
};

}  // namespace

AllocatorSettings parse_allocator_settings(std::string_view text, const Place& place, AllocatorSettings base) {
  return Parser(text, place, base).run();
}

}  // namespace oomplan
