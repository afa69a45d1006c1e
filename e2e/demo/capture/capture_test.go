package capture

import (
	"encoding/hex"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestSummary(t *testing.T) {
	for name, tt := range map[string]struct{ frame, want string }{
		"UDP over IPv4": {"020000000001020000000002" + "0800" +
			"4500001c000000004011000000000000"[:24] + "c6120001" + "c6120002" + "1b58c82000080000",
			"198.18.0.1:7000 → 198.18.0.2:51232, UDP, 42 bytes"},
		"TCP over IPv6": {"020000000001020000000002" + "86dd" + "6000000000140640" +
			"fd420000000000000000000000000001" + "fd420000000000000000000000000002" + "1b58c820",
			"[fd42::1]:7000 → [fd42::2]:51232, TCP, 58 bytes"},
		"ICMP": {"020000000001020000000002" + "0800" +
			"45000014000000004001000000000000"[:24] + "c6120001" + "c6120002",
			"198.18.0.1 → 198.18.0.2, IP protocol 1, 34 bytes"},
		"ARP":       {"0200000000010200000000020806", "14 bytes"},
		"truncated": {"0200000000010200000000020800450000", "17 bytes"},
		"empty":     {"", "0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			frame, err := hex.DecodeString(tt.frame)
			errtest.Must(t, err)
			if got := summary(frame); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func FuzzParseFrame(f *testing.F) {
	f.Add(make([]byte, 14))
	f.Add(make([]byte, 60))
	f.Fuzz(func(_ *testing.T, frame []byte) { _ = summary(frame) })
}
