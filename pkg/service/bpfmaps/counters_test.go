package bpfmaps

import (
	"regexp"
	"slices"
	"testing"
	"unsafe"

	"github.com/kubeveil/kubeveil/internal/filetest"
)

// TestCountersMatchThePrograms holds that Go and C have the same counters in the same order.
func TestCountersMatchThePrograms(t *testing.T) {
	text := filetest.Read(t, "../../../bpf/lib/service/count.h")
	body := regexp.MustCompile(`(?s)enum service_count \{(.*?)\n\};`).FindSubmatch(text)
	if body == nil {
		t.Fatal("count.h has no enum service_count")
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^\tCOUNT_(\w+),`).FindAllSubmatch(body[1], -1) {
		got = append(got, string(m[1]))
	}

	var c Counters
	fields := c.fields()
	offset := func(field *uint64) uintptr {
		return uintptr(unsafe.Pointer(field)) - uintptr(unsafe.Pointer(&c))
	}
	names := map[uintptr]string{
		offset(&c.Sockets.TCP): "SOCKET_TCP", offset(&c.Sockets.UDP): "SOCKET_UDP",
		offset(&c.Sockets.Refused):  "SOCKET_REFUSED",
		offset(&c.Sockets.Unsteady): "SOCKET_UNSTEADY",
		offset(&c.Packets.TCP):      "PACKET_TCP", offset(&c.Packets.UDP): "PACKET_UDP",
		offset(&c.Packets.Refused):  "PACKET_REFUSED",
		offset(&c.Packets.Unsteady): "PACKET_UNSTEADY",
		offset(&c.NotHere):          "PACKET_LOCAL", offset(&c.SourceRefused): "PACKET_SOURCE",
		offset(&c.NoAddress): "PACKET_ADDRESS", offset(&c.NoPort): "PACKET_PORT",
		offset(&c.Moved): "PACKET_MOVED",
	}
	var want []string
	for _, f := range fields {
		want = append(want, names[offset(f)])
	}
	if !slices.Equal(got, want) {
		t.Errorf("C counts\n%v\nGo reads\n%v", got, want)
	}
}
