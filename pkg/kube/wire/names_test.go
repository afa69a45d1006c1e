package wire

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"unsafe"
)

func FuzzParseAddr(f *testing.F) {
	for _, text := range []string{"198.18.0.1", "0.0.0.0", "255.255.255.255", "256.1.1.1", "1.2.3",
		"1.2.3.4.5", "01.2.3.4", "1..2.3", "1.2.3.4.", "fd42::1", "::ffff:198.18.0.1", "fe80::1%a",
		""} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		want, err := netip.ParseAddr(string(text))
		valid := err == nil && want.Zone() == ""
		if got, ok := parseAddr(text); ok != valid || valid && got != want.Unmap() {
			t.Errorf("%q is %v, %t; want %v, %t", text, got, ok, want.Unmap(), valid)
		}
	})
}

func TestNamesShareMemory(t *testing.T) {
	var n Names
	first := n.of([]byte("node-1"))
	if again := n.of([]byte("node-1")); unsafe.StringData(again) != unsafe.StringData(first) {
		t.Error("the same name has two memories")
	}
	for i := range maxNames + 10 {
		if text := fmt.Sprint("name-", i); n.of([]byte(text)) != text {
			t.Fatalf("%s is another name", text)
		}
	}
	if len(n.byText) > maxNames {
		t.Errorf("%d names are kept, more than %d", len(n.byText), maxNames)
	}
	long := strings.Repeat("x", maxName+1)
	text := n.of([]byte(long))
	if _, kept := n.byText[long]; kept || text != long {
		t.Error("a long text is shared")
	}
}
