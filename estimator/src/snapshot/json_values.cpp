// The dict of a snapshot as JSON text, into the same Values as a pickle.
#include <fmt/format.h>

#include <limits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <oomplan/units/errors.hpp>

#include "snapshot/read.hpp"

namespace oomplan::snapshot {
namespace {

/// nlohmann's events, one call a value; its parser does not recurse.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(Values& values, const std::string& path) : values_(values), path_(path) {}

  bool null() override { return put(values_.add_none()); }
  bool boolean(bool value) override { return put(values_.add_boolean(value)); }
  bool number_integer(number_integer_t value) override { return put(values_.add_integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) return put(values_.add_wide());
    return put(values_.add_integer(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override { return put(values_.add_real(value)); }
  bool string(string_t& value) override { return put(values_.add_copied_text(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Kind::dict); }
  bool start_array(std::size_t) override { return open(Kind::list); }
  bool key(string_t& value) override { return put(values_.add_copied_text(value)); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    refuse(fmt::format("no JSON at byte {}", position));
  }

 private:
  [[noreturn]] void refuse(const std::string& found) const {
    Problem problem;
    problem.place.file = path_;
    problem.found = found;
    problem.expected = "a memory snapshot, as a pickle or as JSON";
    throw InputError(problem);
  }
  bool put(Ref ref) {
    if (values_.size() + 1 >= Values::kMost) refuse("more than 134,217,728 values");
    if (!open_.empty())
      values_.append(open_.back(), &ref, 1);
    else
      values_.set_root(ref);
    return true;
  }
  bool open(Kind kind) {
    const Ref ref = values_.add_container(kind, {});
    put(ref);
    open_.push_back(ref);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Values& values_;
  const std::string& path_;
  std::vector<Ref> open_;
};

}  // namespace

Values values_of_json(std::string text, const std::string& path) {
  Values values{std::string()};
  Builder builder(values, path);
  nlohmann::json::sax_parse(text, &builder);
  return values;
}

}  // namespace oomplan::snapshot
