/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The kinds of links that packets come in by. */
#pragma once

enum service_link {
	LINK_UNDERLAY, /* a guarded link: of clients outside the cluster */
	LINK_POD,      /* the host's end of a pod's veth */
	LINK_TUNNEL,   /* of pods on other nodes */
};
