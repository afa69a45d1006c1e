/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* An address of either family. */
#pragma once

#include "kernel.h"

/* 16 bytes in network order; IPv4 is mapped, ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2). */
struct addr {
	union {
		__u8 byte[16];
		__be32 word[4];
	};
};

/* Returns the mapped address of an IPv4 address. */
static __always_inline struct addr addr_from_v4(__be32 v4)
{
	struct addr a = {.word = {0, 0, bpf_htonl(0xffff), v4}};

	return a;
}

/* Reports whether the address is IPv4. */
static __always_inline int is_mapped(const struct addr *a)
{
	return !a->word[0] && !a->word[1] && a->word[2] == bpf_htonl(0xffff);
}

/* Reports whether two addresses are equal. */
static __always_inline int same_addr(const struct addr *a, const struct addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}
