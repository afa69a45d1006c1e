/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Settings that all programs share. Go sets them before it loads a program; the values are in
 * pkg/abi/number.go.
 */
#pragma once

#include "kernel.h"

/* The bit of skb->mark on every packet that entered the node from a pod's veth. */
volatile const __u32 pod_mark;
/* The UDP port of the path MTU probe. Nodes probe each other inside tunnels only. */
volatile const __u32 probe_port;
/* The bit of skb->mark on the encrypted packets that tunnels send. */
volatile const __u32 tunnel_mark;
/* The bit of skb->mark on packets of a flow to a service, in both directions. */
volatile const __u32 service_mark;
