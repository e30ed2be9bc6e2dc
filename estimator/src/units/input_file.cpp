#include "units/input_file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace oomplan {
namespace {

[[noreturn]] void refuse_kind(const char* found) { throw FileRefused{found, {}}; }
[[noreturn]] void refuse_error(const char* what, int error) {
  throw FileRefused{{}, std::string(what) + ": " + std::generic_category().message(error)};
}

/// Waits until there is something to read, or its writers have gone. False: neither came in `milliseconds`; -1 waits for ever.
bool readable(int handle, int milliseconds) {
  pollfd asked{handle, POLLIN, 0};
  int ready = 0;
  do ready = poll(&asked, 1, milliseconds);
  while (ready < 0 && errno == EINTR);
  return ready != 0;
}

/// What a device holds never ends, or is nothing that anybody wrote down. But for the terminal and the empty one.
bool is_strange_device(int handle, const struct stat& info) {
  struct stat empty{};
  if (S_ISBLK(info.st_mode)) return true;
  if (!S_ISCHR(info.st_mode) || isatty(handle) == 1) return false;
  return stat("/dev/null", &empty) != 0 || empty.st_rdev != info.st_rdev;
}

}  // namespace

InputFile::InputFile(const std::string& path) : handle_(STDIN_FILENO), owned_(path != "-") {
  if (path.empty()) refuse_kind("an empty file name");
  if (path.find('\0') != std::string::npos) refuse_kind("a file name with a byte of zero");
  // without O_NONBLOCK a pipe that nobody writes into would be waited for here
  if (owned_) handle_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (handle_ < 0) refuse_error("cannot be opened", errno);
  struct stat info{};
  const auto refused = [&](auto&& how) {
    if (owned_) close(handle_);
    how();
  };
  if (fstat(handle_, &info) != 0) refused([error = errno] { refuse_error("cannot be read", error); });
  if (S_ISDIR(info.st_mode)) refused([] { refuse_kind("a folder"); });
  if (is_strange_device(handle_, info)) refused([] { refuse_kind("a device"); });
  pipe_ = S_ISFIFO(info.st_mode);
  size_ = S_ISREG(info.st_mode) ? static_cast<std::size_t>(info.st_size) : 0;
  waits_ = pipe_ || !S_ISREG(info.st_mode);
}

InputFile::~InputFile() {
  if (owned_) close(handle_);
}

/// A pipe is at its end when nobody writes into it: also before the first one has opened it, a moment after we did.
void InputFile::wait_for_a_writer() {
  constexpr int kPatience = 1000;  // milliseconds
  begun_ = true;
  if (!readable(handle_, kPatience)) refuse_kind("a pipe that nobody writes into");
}

std::size_t InputFile::read(char* room, std::size_t most) {
  while (true) {
    const ssize_t n = ::read(handle_, room, most);
    if (n > 0) begun_ = true;
    if (n == 0 && pipe_ && owned_ && !begun_)
      wait_for_a_writer();
    else if (n >= 0)
      return static_cast<std::size_t>(n);
    else if (errno == EAGAIN && waits_)
      readable(handle_, -1);
    else if (errno != EINTR)
      refuse_error("cannot be read", errno);
  }
}

std::string InputFile::all(std::size_t most, const std::string& limit) {
  if (size_ > most) throw FileRefused{"more than " + limit, {}};  // before anything of it is read
  std::string text;
  std::array<char, 65536> block;
  for (std::size_t n = 0; (n = read(block.data(), block.size())) > 0;) {
    text.append(block.data(), n);
    if (text.size() > most) throw FileRefused{"more than " + limit, {}};
  }
  return text;
}

}  // namespace oomplan
