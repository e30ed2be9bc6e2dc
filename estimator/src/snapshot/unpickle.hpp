// Reads a pickle that holds plain data, and refuses, by name, every opcode that could do more.
//
// A pickle is a program for a small stack machine; Python's own reader lets it import and call anything. This one knows the
// opcodes of protocols 0 to 5 that build None, booleans, integers, floats, texts, bytes, lists, tuples and dicts, and the memo.
// GLOBAL, STACK_GLOBAL, REDUCE, BUILD, INST, OBJ, NEWOBJ, persistent ids, extensions, buffers and sets are refused: nothing is
// looked up, nothing is called. The order of opcodes is that of CPython's Lib/pickletools.py (3.13).
//
// Bounds: 2 GiB of file, 2^27 values, 10,000 open marks. Integers of more than 64 bits are passed over. Lengths are checked
// against what is left of the file before anything is reserved; the machine is a loop, so no nesting can exhaust the stack.
#pragma once
#include <string>

#include "snapshot/values.hpp"

namespace oomplan::snapshot {

/// Throws InputError with the byte at which the file stops being plain data. `path` is for messages.
Values unpickle(std::string data, const std::string& path);

}  // namespace oomplan::snapshot
