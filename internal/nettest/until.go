package nettest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Until calls cond until it returns true, with pauses that grow from 1 ms to 20 ms. It fails the
// test if that takes longer than patience. what describes the condition in the failure.
func Until(t testing.TB, patience time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; !cond(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(pause)
	}
}

// ReadSysctl reads a setting below /proc/sys/net of the namespace, such as
// "ipv4/ip_forward".
func ReadSysctl(t testing.TB, ns *NS, name string) string {
	t.Helper()
	var b []byte
	ns.Run(t, func() (err error) {
		b, err = os.ReadFile(filepath.Join("/proc/sys/net", name))
		return err
	})
	return strings.TrimSpace(string(b))
}
