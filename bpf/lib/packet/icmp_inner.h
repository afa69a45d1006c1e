/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The inner packet of an ICMP error: the beginning of the packet that the error is about (RFC 792,
 * RFC 4443). A node also sends errors about packets that came out of a tunnel. An error to another
 * node's own address is host to host, so it would show in clear text what was encrypted.
 */
#pragma once

#include "kernel.h"

/* The inner packet begins behind eight bytes of ICMP. */
#define ICMP_INNER_OFFSET 8
/* Offset of the checksum in an ICMP header. */
#define ICMP_CHECK 2

/* Reports whether ICMP messages of this type have an inner packet: errors and redirects. */
static __always_inline int icmp_has_inner(int family, __u8 type)
{
	if (family == 6)
		return type < 128;

	return (type >= 3 && type <= 5) || type == 11 || type == 12;
}
