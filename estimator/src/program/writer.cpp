#include <oomplan/program.hpp>

namespace oomplan {

std::vector<Program::Op>& ProgramWriter::target() { return defining_ ? open_ : program_.ops; }

SiteRef ProgramWriter::site(Site row) {
  SiteRef ref{static_cast<std::uint32_t>(program_.sites.size()), row.bytes, row.pool};
  program_.sites.push_back(std::move(row));
  return ref;
}

void ProgramWriter::alloc(const SiteRef& s, Index a, Index b) { target().push_back({Program::Kind::alloc, s.pool, s.id, a, b, 0}); }
void ProgramWriter::free(const SiteRef& s, Index a, Index b) { target().push_back({Program::Kind::free, s.pool, s.id, a, b, 0}); }
void ProgramWriter::trim() { target().push_back({Program::Kind::trim, Pool::torch, 0, {}, {}, 0}); }
void ProgramWriter::pause(Pool pool, Bytes bytes) { target().push_back({Program::Kind::pause, pool, 0, {}, {}, bytes}); }
void ProgramWriter::resume(Pool pool, Bytes bytes) { target().push_back({Program::Kind::resume, pool, 0, {}, {}, bytes}); }

void ProgramWriter::mark(std::string_view label) {
  target().push_back({Program::Kind::mark, Pool::torch, static_cast<std::uint32_t>(program_.labels.size()), {}, {}, 0});
  program_.labels.emplace_back(label);
}

Index ProgramWriter::begin_loop(std::int64_t n, Direction direction, std::int64_t first) {
  const Index index(depth_, first, direction == Direction::forward ? std::int8_t{1} : std::int8_t{-1});
  target().push_back({Program::Kind::loop, Pool::torch, 0, index, {}, n});
  ++depth_;
  return index;
}

void ProgramWriter::end_loop() {
  target().push_back({Program::Kind::end, Pool::torch, 0, {}, {}, 0});
  --depth_;
}

std::uint32_t ProgramWriter::begin_definition() {
  if (defining_) throw Defect("a definition inside a definition");
  defining_ = true;
  outer_depth_ = depth_;
  depth_ = 0;
  open_.clear();
  return static_cast<std::uint32_t>(program_.definitions.size());
}

void ProgramWriter::end_definition() {
  program_.definitions.push_back(std::move(open_));
  open_ = {};
  defining_ = false;
  depth_ = outer_depth_;
}

void ProgramWriter::call(std::uint32_t definition, Index a, Index b) {
  if (defining_) throw Defect("a call inside a definition");
  program_.ops.push_back({Program::Kind::call, Pool::torch, definition, a, b, 0});
}

Program ProgramWriter::take() { return std::move(program_); }

}  // namespace oomplan
