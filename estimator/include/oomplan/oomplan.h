/* oomplan for C and for everything that calls C: text and JSON in, JSON out.
 *
 * Thread-safe; no global state; no exception leaves; nothing is printed. An oomplan_catalog is never changed once it is open.
 * Every call that answers returns a status: 0 fits (or done), 1 does not fit, 2 the input is wrong, 3 a defect of oomplan; with 2
 * and 3 the text is {"schema": "oomplan.error/1", ...}. The JSON is that of the program (docs/schema). oomplan_search_watched
 * alone has a fifth: 4, it was stopped. */
#ifndef OOMPLAN_H
#define OOMPLAN_H
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define OOMPLAN_API __attribute__((visibility("default")))
#else
#define OOMPLAN_API
#endif

typedef struct oomplan_catalog oomplan_catalog;
typedef struct oomplan_text oomplan_text;

/* What oomplan_abi() of this header says. Grows when a call is added; no call ever changes. 2: oomplan_estimate_quick,
 * 3: oomplan_search_watched. */
#define OOMPLAN_ABI 3
/* OOMPLAN_ABI of the library. */
OOMPLAN_API int oomplan_abi(void);
/* "0.1.0"; static. */
OOMPLAN_API const char* oomplan_version(void);

/* The built-in catalog, or with the files of a directory laid over it. NULL when the directory is wrong; then *error, unless
 * error is NULL, is a text to be freed. */
OOMPLAN_API oomplan_catalog* oomplan_open(const char* models_dir_or_null, oomplan_text** error);
OOMPLAN_API void oomplan_close(oomplan_catalog*);

/* The answer for a job file, or a launch script of which nothing is run (docs/launch.md), of n bytes: milliseconds, the allocator
 * of every process is replayed. `overrides` is NULL or lines "key=value", separated by line breaks. REQUIRES: out is not NULL;
 * *out is to be freed, whatever the status; it is NULL only when memory ran out (status 3). */
OOMPLAN_API int oomplan_estimate(const oomplan_catalog*, const char* job, size_t n, const char* overrides, oomplan_text** out);
/* Levels alone, in microseconds to a millisecond: what is reserved and needed are lower bounds, and there is no probability. */
OOMPLAN_API int oomplan_estimate_quick(const oomplan_catalog*, const char* job, size_t n, const char* overrides,
                                       oomplan_text** out);
/* As oomplan_estimate, and names what is live. */
OOMPLAN_API int oomplan_explain(const oomplan_catalog*, const char* job, size_t n, const char* overrides, oomplan_text** out);
/* `request` is NULL or {"gpus": 8, "allow": "numerics", "maximise": "tokens", "fixed": ["actor.layout"], "min_probability": 0.9,
 * "keep": 10, "threads": 1}. With "start": {"model": "qwen-7b", "gpus": 8, "algorithm": "grpo"} the job is described
 * (docs/search.md), job and overrides are NULL, and every configuration's "job_file" is a file of the framework that starts it.
 */
OOMPLAN_API int oomplan_search(const oomplan_catalog*, const char* job, size_t n, const char* overrides, const char* request,
                               oomplan_text** out);
/* Whether the search shall stop: not 0. `context` is what the caller gave. */
typedef int (*oomplan_stop)(void* context);
/* As oomplan_search, and asks `stop`, unless it is NULL, about every 20 ms, on the thread that called. Stopped, it returns 4 soon
 * after; the text has what was found so far, with "interrupted": true. REQUIRES: `stop` does not throw, and does not jump away.
 */
OOMPLAN_API int oomplan_search_watched(const oomplan_catalog*, const char* job, size_t n, const char* overrides,
                                       const char* request, oomplan_stop stop, void* context, oomplan_text** out);

/* The text, ended by a 0 that *n does not count; n may be NULL. Valid until it is freed. */
OOMPLAN_API const char* oomplan_text_data(const oomplan_text*, size_t* n);
OOMPLAN_API void oomplan_text_free(oomplan_text*);

#ifdef __cplusplus
}
#endif
#endif
