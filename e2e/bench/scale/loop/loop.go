package loop

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// Path is the path of the messages at the feed.
const Path = "/messages"

// Fields of a message. It has the size and the content of the messages that Arion's agent receives
// for each neighbour: network, addresses and hardware address of the neighbour, and its host.
const (
	fieldNetwork = 1 + iota
	fieldHardware
	fieldAddr
	fieldHost
	fieldRevision
)

// maxMessage bounds a message, in bytes.
const maxMessage = 4096

// Messages returns n messages, each after its length.
func Messages(n int) (all []byte) {
	var m []byte
	for i := range n {
		m = protowire.AppendTag(m[:0], fieldNetwork, protowire.VarintType)
		m = protowire.AppendVarint(m, uint64(i%4096))
		host := i % 10000
		m = appendText(m, fieldHardware, fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", byte(i>>24),
			byte(i>>16), byte(i>>8), byte(i)))
		m = appendText(m, fieldAddr, apifeed.Addr(i).String())
		m = appendText(m, fieldHost,
			netip.AddrFrom4([4]byte{198, 18, byte(host >> 8), byte(host)}).String())
		m = protowire.AppendTag(m, fieldRevision, protowire.VarintType)
		m = protowire.AppendVarint(m, uint64(i))
		all = append(binary.BigEndian.AppendUint32(all, uint32(len(m))), m...)
	}
	return all
}

func appendText(m []byte, number protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(m, number, protowire.BytesType), text)
}

// entryKey and entryValue are an entry of the map.
type (
	entryKey   struct{ Network, Addr [4]byte }
	entryValue struct {
		Hardware [20]byte
		Host     [4]byte
		Pad      [8]byte
	}
)

// maxEntries has room for twice the largest number of endpoints. noPrealloc is BPF_F_NO_PREALLOC.
const maxEntries, noPrealloc = 2 << 20, 1

// Measure reads n messages from a URL and updates a map for each. It returns the time and the CPU
// time of this process from the request to the last update.
func Measure(ctx context.Context, client *http.Client, url string, n int) (wall, cpu time.Duration,
	err error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 32,
		MaxEntries: maxEntries, Flags: noPrealloc})
	if err != nil {
		return 0, 0, err
	}
	defer m.Close()

	began, before := time.Now(), load.OwnCPU()
	updates, err := update(ctx, client, url, m)
	wall, cpu = time.Since(began), load.OwnCPU()-before
	if err == nil && updates != n {
		err = fmt.Errorf("%d messages, want %d", updates, n)
	}
	return wall, cpu, err
}

// update reads messages and updates m for each. It returns their number.
func update(ctx context.Context, client *http.Client, url string, m *ebpf.Map) (n int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()

	r := bufio.NewReaderSize(answer.Body, 64<<10)
	var head [4]byte
	buffer := make([]byte, maxMessage)
	for ; ; n++ {
		if _, err := io.ReadFull(r, head[:]); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
		size := binary.BigEndian.Uint32(head[:])
		if size > maxMessage {
			return n, fmt.Errorf("message of %d bytes", size)
		}
		if _, err := io.ReadFull(r, buffer[:size]); err != nil {
			return n, err
		}
		key, value, err := parse(buffer[:size])
		if err != nil {
			return n, err
		}
		if err := m.Put(key, value); err != nil {
			return n, err
		}
	}
}

// parse returns the entry of a message.
func parse(message []byte) (key entryKey, value entryValue, err error) {
	for len(message) > 0 {
		number, wireType, size := protowire.ConsumeTag(message)
		if size < 0 {
			return key, value, protowire.ParseError(size)
		}
		message = message[size:]
		if wireType == protowire.VarintType {
			v, size := protowire.ConsumeVarint(message)
			if size < 0 {
				return key, value, protowire.ParseError(size)
			}
			message = message[size:]
			if number == fieldNetwork {
				binary.BigEndian.PutUint32(key.Network[:], uint32(v))
			}
			continue
		}

		text, size := protowire.ConsumeString(message)
		if size < 0 {
			return key, value, protowire.ParseError(size)
		}
		message = message[size:]
		if number == fieldHardware {
			copy(value.Hardware[:], text)
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return key, value, err
		}
		if number == fieldAddr {
			key.Addr = addr.As4()
		} else {
			value.Host = addr.As4()
		}
	}
	return key, value, nil
}
