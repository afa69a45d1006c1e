package bpfmaps

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// The state of a flow follows from the flags of both ends, and has the kernel's timeout. A
// half-closed connection counts for an hour.
func TestFlowsAreOverAfterTheTimeoutOfTheirState(t *testing.T) {
	ns := nettest.NewNS(t)
	nettest.Sysctl(t, ns, "netfilter/nf_conntrack_tcp_timeout_established", "7200")
	nettest.Sysctl(t, ns, "netfilter/nf_conntrack_tcp_timeout_close_wait", "60")
	var timeouts flowTimeouts
	ns.Run(t, func() error {
		timeouts = readFlowTimeouts()
		return nil
	})

	const open = FlowForward | flowClientSent | flowReplied
	for name, tt := range map[string]struct {
		protocol uint8
		flags    uint32
		want     int32
	}{
		"udp":                     {unix.IPPROTO_UDP, FlowForward, 120},
		"syn":                     {unix.IPPROTO_TCP, FlowForward, 120},
		"syn and answer":          {unix.IPPROTO_TCP, FlowForward | flowReplied, 60},
		"established":             {unix.IPPROTO_TCP, open, 7200},
		"evicted once":            {unix.IPPROTO_TCP, FlowForward | FlowCopied, 7200},
		"closed by the client":    {unix.IPPROTO_TCP, open | flowClientFIN, 3600},
		"closed by the backend":   {unix.IPPROTO_TCP, open | flowBackendFIN, 3600},
		"closed by both":          {unix.IPPROTO_TCP, open | flowClientFIN | flowBackendFIN, 120},
		"reset":                   {unix.IPPROTO_TCP, open | flowRST, 10},
		"reset of a half-open":    {unix.IPPROTO_TCP, FlowForward | flowRST, 10},
		"reset of a half-closed":  {unix.IPPROTO_TCP, open | flowClientFIN | flowRST, 10},
		"FIN without a handshake": {unix.IPPROTO_TCP, FlowForward | flowClientFIN, 120},
	} {
		if got := timeouts.of(tt.protocol, tt.flags); got != tt.want {
			t.Errorf("%s: %d s, want %d", name, got, tt.want)
		}
	}
}

// Go and the programs use the same numbers for flags.
func TestFlagsOfFlowsAreAsInThePrograms(t *testing.T) {
	text, err := os.ReadFile("../../../bpf/lib/service/flow.h")
	errtest.Must(t, err)
	want := map[string]int{"FORWARD": FlowForward, "SNAT": flowSNAT, "CLIENT_FIN": flowClientFIN,
		"RST": flowRST, "CLIENT_SENT": flowClientSent, "REPLIED": flowReplied,
		"BACKEND_FIN": flowBackendFIN, "HOST_ROUTED": FlowHostRouted, "COPIED": FlowCopied}
	found := 0
	for _, m := range regexp.MustCompile(`(?m)^#define FLOW_(\w+)\s+(\d+)`).FindAllSubmatch(text, -1) {
		n, err := strconv.Atoi(string(m[2]))
		if w, used := want[string(m[1])]; err != nil || used && n != w {
			t.Errorf("FLOW_%s is %s, want %d", m[1], m[2], w)
		} else if used {
			found++
		}
	}
	if found != len(want) {
		t.Errorf("%d of %d flags are in flow.h", found, len(want))
	}
}
