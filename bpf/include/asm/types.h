/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the kernel's headers for user space ask for, the same for every machine. */
#include <asm-generic/types.h>
