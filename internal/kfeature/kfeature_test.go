package kfeature

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// The kernel has every feature whose Since is not later than its release. It may have later
// features too.
func TestThisKernelHasTheFeaturesOfItsRelease(t *testing.T) {
	nettest.NeedBPF(t)
	var name unix.Utsname
	errtest.Must(t, unix.Uname(&name))
	release := unix.ByteSliceToString(name.Release[:])
	number := func(text string) []int {
		n := make([]int, 2)
		if _, err := fmt.Sscanf(text, "%d.%d", &n[0], &n[1]); err != nil {
			t.Fatalf("release %q: %v", text, err)
		}
		return n
	}

	for _, f := range []Feature{SocketStorage, HashBatches, Getpeername, NetnsCookieHelper, TrieBatches,
		NetnsCookieOption, SetRetval, TCX} {
		t.Run(f.What, func(t *testing.T) {
			has, err := f.Has()
			errtest.Must(t, err)
			if !has && slices.Compare(number(release), number(f.Since)) >= 0 {
				t.Errorf("Linux %s should have it since %s, and it was not found", release, f.Since)
			}
		})
	}
}

// Has returns false for an error that means "not supported", and an error for "not permitted".
func TestAnswersOfTheKernel(t *testing.T) {
	for name, c := range map[string]struct {
		err         error
		has, failed bool
	}{
		"success":          {nil, true, false},
		"invalid":          {unix.EINVAL, false, false},
		"no such option":   {fmt.Errorf("ask: %w", unix.ENOPROTOOPT), false, false},
		"no permission":    {unix.EPERM, false, true},
		"no memory for it": {unix.ENOMEM, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			has, err := Feature{probe: func() error { return c.err }}.Has()
			if has != c.has || (err != nil) != c.failed {
				t.Errorf("%t, %v", has, err)
			}
		})
	}
}

func TestFlowTablesOfReleases(t *testing.T) {
	for _, tc := range []struct {
		release, version string
		used             bool
	}{
		{"5.10.0-39-amd64", "#1 SMP Debian 5.10.251-1", false},
		{"5.15.0-1057-azure", "#65-Ubuntu SMP", false},
		{"6.1.0-9-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.27-1 (2023-05-08)", false},
		{"6.1.0-56-cloud-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-11-01)", true},
		{"6.1.0", "#1 SMP", false},
		{"6.1.115-126.197.amzn2023.x86_64", "#1 SMP", true},
		{"6.2.0-39-generic", "#40-Ubuntu", false},
		{"6.3.5", "", false},
		{"6.3.6", "", true},
		{"6.4-rc1", "", true},
		{"6.18.44", "#1 SMP 6.1.2", true},
		{"7.0.0-rc1", "", true},
		{"unknown", "", false},
	} {
		if err := tooOldForFlows(tc.release, tc.version); (err == nil) != tc.used {
			t.Errorf("%s %s: %v", tc.release, tc.version, err)
		}
	}
}
