/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The kernel's headers for user space want the machine's <asm/posix_types.h>; a BPF object is for
 * all. */
#include <asm-generic/posix_types.h>
