/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * ICMP errors carry the beginning of the packet that they are about (RFC 792, RFC 4443). A node
 * makes them for packets that came out of a tunnel too, and one to another node's own address is
 * host to host: it would show in clear what was encrypted.
 */
#pragma once

#include "kernel.h"

/* The quoted packet follows eight bytes of ICMP. */
#define QUOTE_OFFSET 8

struct ports {
	__be16 src;
	__be16 dst;
};

/* Whether the ICMP type is that of an error or redirect. */
static __always_inline int is_quoting(int family, __u8 type)
{
	if (family == 6)
		return type < 128;
	return (type >= 3 && type <= 5) || type == 11 || type == 12;
}
