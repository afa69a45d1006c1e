package wgdevice_test

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// The first message that the restarted side sends in the new session confirms the handshake. If
// that message is lost, the other side continues with the old session, whose keys the restarted
// side does not have.
func TestLostConfirmationOfARestartedWorker(t *testing.T) {
	nettest.NeedProgram(t, "nft")
	a, b := pair(t, ipv4)
	arrivals, _ := stream(t, a, b, 4001)
	flows(t, "traffic before the kill", arrivals, time.Time{})
	b.Run(t, func() error {
		return exec.Command("sh", "-ec", `nft add table inet loss
			nft add chain inet loss out '{ type filter hook output priority 0; }'
			nft add rule inet loss out udp sport 51820 udp length 40 limit rate 1/day burst 1 packets counter drop`).Run()
	})
	pid := b.child()

	b.killChild(syscall.SIGKILL)
	nettest.Until(t, recovery, "a new process", func() bool {
		p := b.child()
		return p != 0 && p != pid
	})
	back := time.Now()
	took := flows(t, "traffic after the kill", arrivals, back).Sub(back)
	t.Logf("traffic after %s", took)
	b.Run(t, func() error {
		out, err := exec.Command("nft", "list", "table", "inet", "loss").Output()
		if err == nil && !strings.Contains(string(out), "counter packets 1 ") {
			t.Errorf("nothing was lost: %s", out)
		}
		return err
	})

	if took > recovery {
		t.Errorf("traffic came back after %s, want at most %s", took, recovery)
	}
}
