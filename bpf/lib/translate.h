/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where the guard at egress lets packets be translated before it judges them. Who puts a program
 * there has to judge in the guard's place, by guard_out of guard.h: it does not come back. While
 * there is none the guard judges what is not translated.
 */
#pragma once

#include "kernel.h"
#include "settings.h"

enum translate_link {
	TRANSLATE_ETHERNET,
	TRANSLATE_L3,
	TRANSLATE_LINKS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TRANSLATE_LINKS);
	__type(key, __u32);
	__type(value, __u32);
} egress_translate SEC(".maps");

static __always_inline void translate(struct __sk_buff *skb, enum translate_link link)
{
	if (!(skb->mark & tunnel_mark))
		bpf_tail_call(skb, &egress_translate, link);
}
