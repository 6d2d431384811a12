// What -fsanitize=thread,undefined makes the compiler call in a check build, answered here: the sanitizers' own
// libraries know nothing of fibers. Hidden, so that they serve this library alone. Never compiled with -fsanitize.
#include <cstdlib>
#include <cstring>

#include "checker.h"
#include "report.h"
#include "scheduler.h"

#define CODE __builtin_return_address(0)

extern "C" {

// Whether an access is aligned is for the other sanitizer to say, which knows what type is meant.
#define ACCESSES(bytes)                                                                            \
  void __tsan_read##bytes(void* p) { emulator::checker::access(p, bytes, false, CODE); }           \
  void __tsan_write##bytes(void* p) { emulator::checker::access(p, bytes, true, CODE); }           \
  void __tsan_unaligned_read##bytes(void* p) { emulator::checker::access(p, bytes, false, CODE); } \
  void __tsan_unaligned_write##bytes(void* p) { emulator::checker::access(p, bytes, true, CODE); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* p, size_t bytes) { emulator::checker::access(p, bytes, false, CODE); }
void __tsan_write_range(void* p, size_t bytes) { emulator::checker::access(p, bytes, true, CODE); }
char __tsan_atomic8_load(const char* p, int) { return *p; }  // the guard of a static variable, on the host
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}

// Every handler's first argument begins with where it happened.
struct SourcePosition {
  const char* file;
  unsigned line, column;
};

static void report_undefined(const char* kind, const SourcePosition* at) {
  const char* slash = strrchr(at->file, '/');
  emulator::report(kind, (slash ? slash + 1 : at->file) + (":" + std::to_string(at->line)));
}

#define UNDEFINED(name, kind) \
  void __ubsan_handle_##name(SourcePosition* at, ...) { report_undefined(kind, at); }
UNDEFINED(add_overflow, "integer overflow")
UNDEFINED(sub_overflow, "integer overflow")
UNDEFINED(mul_overflow, "integer overflow")
UNDEFINED(negate_overflow, "integer overflow")
UNDEFINED(divrem_overflow, "integer division")
UNDEFINED(shift_out_of_bounds, "shift out of bounds")
UNDEFINED(float_cast_overflow, "float out of the integer's range")
UNDEFINED(load_invalid_value, "value that its type does not have")
UNDEFINED(pointer_overflow, "pointer overflow")
UNDEFINED(vla_bound_not_positive, "array of no elements")
UNDEFINED(nonnull_arg, "null argument")
UNDEFINED(invalid_builtin, "argument that a builtin does not have")

// After these the code cannot go on: the access faults, or there is nothing to return to.
[[noreturn]] static void refuse(const char* kind, const SourcePosition* at) {
  report_undefined(kind, at);
  if (!emulator::self) abort();
  emulator::abandon_launch();
}

void __ubsan_handle_out_of_bounds(SourcePosition* at, void*) { refuse("array index out of bounds", at); }
void __ubsan_handle_builtin_unreachable(SourcePosition* at) { refuse("code that cannot be reached", at); }
void __ubsan_handle_missing_return(SourcePosition* at) { refuse("function without a result", at); }

struct TypeMismatch {
  SourcePosition at;
  const void* type;
  unsigned char log_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1(TypeMismatch* access, uintptr_t p) {
  const bool is_aligned = p % (uintptr_t{1} << access->log_alignment) == 0;
  refuse(is_aligned ? "access to an object that is smaller" : "misaligned access", &access->at);
}
}
