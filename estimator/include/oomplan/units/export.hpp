// What a shared liboomplan shows: everything that the public headers declare, and nothing else. The library is compiled with
// hidden symbols; `namespace oomplan OOMPLAN_PUBLIC {` in a public header makes what the block declares visible.
#pragma once

#if defined(__GNUC__)
#define OOMPLAN_PUBLIC __attribute__((visibility("default")))
#else
#define OOMPLAN_PUBLIC
#endif
