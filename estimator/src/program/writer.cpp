#include <algorithm>
#include <utility>

#include <oomplan/program.hpp>

#include "units/interruption.hpp"

namespace oomplan {

void ProgramWriter::write(Program::Op op) {
  check(op.a);
  check(op.b);
  auto& ops = defining_ ? open_ : program_.ops;
  // a copy of twice the size beside the old one would be the most that an estimate takes
  if (constexpr std::size_t kMany = 1 << 16; ops.size() == ops.capacity() && ops.size() >= kMany) ops.reserve(ops.size() / 4 * 5);
  ops.push_back(op);
}

void ProgramWriter::check(Index i) const {
  if (i.depth() >= depth_) throw Defect("an index outside its loop");
  if (i.depth() < -1 && !defining_) throw Defect("a formal index outside a definition");
}

SiteRef ProgramWriter::site(Site row) {
  SiteRef ref{static_cast<std::uint32_t>(program_.sites.size()), row.bytes, row.pool};
  program_.sites.push_back(std::move(row));
  return ref;
}

void ProgramWriter::alloc(const SiteRef& s, Index a, Index b) {
  interruption_point_at(++allocations_);  // not in free(), which destructors call
  write({Program::Kind::alloc, s.pool, s.id, a, b, 0});
}
void ProgramWriter::free(const SiteRef& s, Index a, Index b) { write({Program::Kind::free, s.pool, s.id, a, b, 0}); }
void ProgramWriter::trim() { write({Program::Kind::trim, Pool::torch, 0, {}, {}, 0}); }
void ProgramWriter::expandable_segments(bool on) { write({Program::Kind::segments, Pool::torch, 0, {}, {}, on ? 1 : 0}); }
void ProgramWriter::pause(Pool pool, Bytes bytes) { write({Program::Kind::pause, pool, 0, {}, {}, bytes}); }
void ProgramWriter::resume(Pool pool, Bytes bytes) { write({Program::Kind::resume, pool, 0, {}, {}, bytes}); }

void ProgramWriter::mark(std::string_view label) {
  const auto found = std::find(program_.labels.begin(), program_.labels.end(), label);
  write({Program::Kind::mark, Pool::torch, static_cast<std::uint32_t>(found - program_.labels.begin()), {}, {}, 0});
  if (found == program_.labels.end()) program_.labels.emplace_back(label);
}

Index ProgramWriter::begin_loop(std::int64_t n, Direction direction, std::int64_t first) {
  const Index index(depth_, first, direction == Direction::forward ? 1 : -1);
  write({Program::Kind::loop, Pool::torch, 0, {}, {}, n});
  if (++depth_ > 100) throw Defect("more than 100 loops in each other");
  return index;
}

void ProgramWriter::end_loop() {
  write({Program::Kind::end, Pool::torch, 0, {}, {}, 0});
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
  if (!defining_ || depth_ != 0) throw Defect("a definition that ends inside a loop, or without a beginning");
  program_.definitions.push_back(std::move(open_));
  open_ = {};
  defining_ = false;
  depth_ = outer_depth_;
}

void ProgramWriter::call(std::uint32_t definition, Index a, Index b) {
  if (defining_) throw Defect("a call inside a definition");
  if (definition >= program_.definitions.size()) throw Defect("a call of a definition that does not exist");
  write({Program::Kind::call, Pool::torch, definition, a, b, 0});
}

Program ProgramWriter::take() {
  if (defining_ || depth_ != 0) throw Defect("a program that ends inside a loop or a definition");
  return std::exchange(program_, {});
}

}  // namespace oomplan
