package sysctl

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestWhatIsWrittenIsRead(t *testing.T) {
	ns := nettest.NewNS(t)
	ns.Run(t, func() error {
		if err := Write(RPFilter("lo"), "1"); err != nil {
			return err
		}
		if n, err := ReadNumber(RPFilter("lo")); n != 1 || err != nil {
			t.Errorf("rp_filter of lo is %d, %v", n, err)
		}
		if _, err := Read(RPFilter("gone0")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a link that is not there: %v", err)
		}
		if _, err := ReadNumber("ipv4/ping_group_range"); err == nil {
			t.Error("two numbers are read as one")
		}
		return nil
	})
}
