#include "output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include <oomplan/oomplan.hpp>

namespace oomplan::cli {
namespace {

class Output {
 public:
  Output(const std::string& path, std::string_view kind) : path_(path), kind_(kind) {
    constexpr int kReadableByAll = 0666;  // less the umask
    handle_ = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, kReadableByAll);
    if (handle_ < 0) errno == ELOOP ? refuse("a symbolic link") : fail();
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (handle_ >= 0) close(handle_);
  }

  void expect_same_kind(std::string_view bytes) const {
    struct stat info{};
    if (fstat(handle_, &info) != 0) fail();
    if (!S_ISREG(info.st_mode)) refuse("not a regular file");
    std::array<char, 2> start{};
    const ssize_t read = pread(handle_, start.data(), start.size(), 0);
    if (read < 0) fail();
    const auto length = static_cast<std::size_t>(read);
    if (std::string_view(start.data(), length) != bytes.substr(0, length)) refuse("another file");
  }
  void replace_by(std::string_view bytes) {
    if (ftruncate(handle_, 0) != 0) fail();
    while (!bytes.empty()) {
      const ssize_t written = write(handle_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail();
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    const int handle = handle_;
    handle_ = -1;
    if (close(handle) != 0) fail();
  }

 private:
  [[noreturn]] void refuse(const std::string& found) const {
    throw InputError(Problem{{path_, 0, 0, {}}, found, "a new file, or " + kind_ + " to replace", {}, "it is left as it is"});
  }
  [[noreturn]] void fail() const {
    Problem problem;
    problem.place.file = path_;
    problem.why = "cannot be written: " + std::generic_category().message(errno);
    throw InputError(problem);
  }

  std::string path_, kind_;
  int handle_ = -1;
};

}  // namespace

void write_file(const std::string& path, std::string_view bytes, std::string_view kind) {
  Output out(path, kind);
  out.expect_same_kind(bytes);
  out.replace_by(bytes);
}

}  // namespace oomplan::cli
