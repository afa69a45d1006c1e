package lab

// Names of cases.
const (
	caseTCP1         = "tcp_1_stream"
	caseTCP4         = "tcp_4_streams"
	caseUDP          = "udp_at_half_percent_loss"
	caseTCPCapped    = "tcp_over_1_gbit"
	caseUDPCapped    = "udp_over_200_mbit"
	caseBetweenLarge = "between_1300_bytes"
	caseBetweenSmall = "between_100_bytes"
	caseAdd          = "add_p50"
	caseAddWorkers   = "add_by_8_workers"
	caseFill         = "peers_1000_to_device"
	caseChange       = "one_peer_changed"
	caseTurn         = "one_peer_changed_whole_turn"
	caseFillTurns    = "peers_1000_whole_turns"
	caseMemory       = "memory_1000_nodes"
	caseIdle         = "idle_cpu_1000_nodes"
	caseChurnCPU     = "churn_cpu_250_pods_1000_nodes"
	caseChurnApply   = "churn_apply_p99_250_pods_1000_nodes"
	caseChurnPeer    = "churn_changed_peer_p99_250_pods_1000_nodes"
)

// Names of other sides.
const (
	baseBare       = "bare wireguard-go"
	baseClear      = "in clear"
	sideNoServices = "serviceProxy none"
	sideAgain      = "serviceProxy none, again"
	sideKernel     = "hostRouting kernel"
	sideFastPath   = "hostRouting ebpf"
	basePTP        = "ptp, host-local"

	sideJudged        = "hostRouting ebpf, pods with a policy"
	sideService       = "hostRouting ebpf, to a service"
	sideOutside       = "hostRouting ebpf, a client outside by another node"
	sideOutsideKernel = "hostRouting kernel, a client outside by another node"
)

var labels = map[string]string{
	caseTCP1: "TCP, 1 stream", caseTCP4: "TCP, 4 streams",
	caseUDP:                              "UDP, highest rate with ≤ 0.5 % loss",
	caseTCPCapped:                        "TCP over a link of 1 Gbit/s",
	caseUDPCapped:                        "UDP over a link of 200 Mbit/s, ≤ 0.5 % loss",
	caseBetweenLarge + "_control":        "CPU of a datagram of 1,300 bytes, the same side twice",
	caseBetweenLarge + "_kernel":         "the same, with programs of services",
	caseBetweenLarge + "_fast":           "the same, on the fast path",
	caseBetweenLarge + "_fast_to_kernel": "the same, fast path against programs of services",
	caseBetweenLarge + "_judged":         "the same, pods that a policy selects",
	caseBetweenLarge + "_service":        "the same, to a service against to its pod",
	caseBetweenLarge + "_outside":        "a client outside by another node, fast path against kernel",
	caseBetweenSmall + "_control":        "CPU of a datagram of 100 bytes, the same side twice",
	caseBetweenSmall + "_kernel":         "the same, with programs of services",
	caseBetweenSmall + "_fast":           "the same, on the fast path",
	caseBetweenSmall + "_fast_to_kernel": "the same, fast path against programs of services",
	caseBetweenSmall + "_judged":         "the same, pods that a policy selects",
	caseBetweenSmall + "_service":        "the same, to a service against to its pod",
	caseBetweenSmall + "_outside":        "a client outside by another node, fast path against kernel",
	caseAdd:                              "CNI ADD, median", caseAddWorkers: "Pods added by 8 workers, all of them",
	caseTurn:       "One changed peer, the whole turn",
	caseFillTurns:  "1,000 peers, all turns of a new veild",
	caseFill:       "1,000 peers from the table to the device",
	caseChange:     "One changed peer from the table to the device",
	caseMemory:     "veild, resident, 1,000 nodes known",
	caseIdle:       "veild, CPU when idle, 1,000 nodes known",
	caseChurnCPU:   "veild, CPU, 250 pods, 1 ADD, DEL and changed peer a second",
	caseChurnApply: "table_apply_duration meanwhile, p99",
	caseChurnPeer:  "A changed peer from the source to the device meanwhile, p99",
}

var notes = []string{
	"bare wireguard-go: the same pods, veths, routes and engine. Only the routes between nodes " +
		"use another device, with the same MTU and queue length. veild is stopped for that time, " +
		"so that it does not restore the routes. The counters of each side's device must contain " +
		"the bytes that were measured.",
	"in clear: pods of the reference plugins ptp and host-local with plain routes, over a bridge " +
		"whose ports are limited by tbf in the same way; " +
		"tbf counts the headers of each frame that a segmented packet becomes, so the rate is " +
		"that of a wire.",
	"CNI ADD is compared only for IPv4, because with IPv6 the reference plugin ptp waits more " +
		"than a second for duplicate address detection, which would decide the comparison.",
	"CPU of veild is its own process, as a share of one core, from /proc/PID/stat. The time of a " +
		"changed peer begins when the source has read it, and is read from veild's log.",
	"UDP: bisection to 2 %; a rate that loses more than 0.5 % is measured a second time before " +
		"it counts as too high. Loss is the share of sent datagrams that did not arrive. " +
		"Datagrams fill one packet of the pod's MTU.",
	"Throughput is payload received. CPU is busy time of the whole machine, load generator " +
		"included, from /proc/stat.",
	"between: CPU of iperf3 and of the engines of both nodes for a datagram from a pod to a pod of " +
		"another node, at a rate that all sides carry. It contains the kernel's work in their " +
		"system calls, up to the tunnel and from the tunnel to the pod. The kernel of the " +
		"namespaces has no flow tables.",
	"The leak oracle read all frames while the labs were built and pods exchanged messages. It " +
		"ended before throughput was measured, because it costs CPU.",
}
