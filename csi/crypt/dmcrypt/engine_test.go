package dmcrypt

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/crypt"
)

const testPayload = 8 << 20

var testUUID = crypt.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

func testTable() MappingSpec {
	return Expected(testUUID, 1, testPayload, unix.Mkdev(7, 3), Latency, false)
}

func TestTable(t *testing.T) {
	const id = "01020304-0506-0708-090a-0b0c0d0e0f10"
	table := testTable()
	want := "aes-xts-plain64 :64:logon:kubeveil:" + id +
		" 0 7:3 8192 3 sector_size:4096 no_read_workqueue no_write_workqueue"
	if got := table.params(table.Tuning.flags()); got != want {
		t.Errorf("arguments %q, want %q", got, want)
	}
	if table.Name != "kubeveil-"+id+"-1" || table.UUID != "KUBEVEIL-"+id+"-1" ||
		!strings.HasPrefix(table.Name, NamePrefix(testUUID)) {
		t.Errorf("names %s and %s", table.Name, table.UUID)
	}
	table.Discard, table.Tuning = true, ""
	if got := table.params(table.Tuning.flags()); !strings.HasSuffix(got,
		" 2 sector_size:4096 allow_discards") {
		t.Errorf("with discard: %q", got)
	}
}

func TestDiffersNamesEachDifference(t *testing.T) {
	table := testTable()
	replace := func(old, with string) func(*Mapping) {
		return func(m *Mapping) {
			m.Targets[0].params = strings.Replace(m.Targets[0].params, old, with, 1)
		}
	}

	for name, c := range map[string]struct {
		edit func(*Mapping)
		want string
	}{
		"same": {func(*Mapping) {}, ""},
		"flags that tune": {replace("3 sector_size:4096 no_read_workqueue no_write_workqueue",
			"2 submit_from_crypt_cpus sector_size:4096"), ""},
		"another epoch": {func(m *Mapping) {
			m.UUID = strings.TrimSuffix(m.UUID, "1") + "2"
		}, "uuid: expected KUBEVEIL"},
		"suspended":     {func(m *Mapping) { m.Suspended = true }, "suspended true"},
		"a table waits": {func(m *Mapping) { m.Inactive = true }, "second table true"},
		"read-only":     {func(m *Mapping) { m.ReadOnly = true }, "read-only true"},
		"fenced": {func(m *Mapping) {
			m.Targets = []Target{{Length: testPayload, Type: "error"}}
		}, "found [error]"},
		"no table": {func(m *Mapping) { m.Targets = nil }, "one crypt target"},
		"two targets": {func(m *Mapping) {
			m.Targets = append(m.Targets, m.Targets[0])
		}, "[crypt crypt]"},
		"another size":   {func(m *Mapping) { m.Targets[0].Length += 4096 }, "size: expected"},
		"another device": {replace("7:3", "7:4"), "device: expected 7:3, found 7:4"},
		"null cipher": {replace(crypt.Cipher, "cipher_null-ecb"),
			"cipher: expected aes-xts-plain64"},
		"another key":    {replace("kubeveil:0102", "kubeveil:0202"), "key: expected"},
		"another offset": {replace("8192", "8200"), "offset: expected"},
		"another IV":     {replace(" 0 7", " 8 7"), "IV offset: expected"},
		"discards":       {replace("3 sector", "4 allow_discards sector"), "options: expected"},
		"other sectors":  {replace("sector_size:4096", "sector_size:512"), "options: expected"},
		"no options": {replace(" 3 sector_size:4096 no_read_workqueue no_write_workqueue",
			""), "options: expected"},
		"arguments cut off": {func(m *Mapping) { m.Targets[0].params = crypt.Cipher }, "arguments"},
		"integrity is asked": {replace("3 sector", "4 integrity:28:aead sector"),
			"options: expected"},
	} {
		m := table.Mapping()
		c.edit(&m)
		if got := table.Differs(m); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q; want %q", name, got, c.want)
		}
	}
}

func TestKeysInTablesAreTakenOut(t *testing.T) {
	for params, want := range map[string]string{
		"aes-xts-plain64 00112233 0 7:0 8192": "aes-xts-plain64 redacted 0 7:0 8192",
		"aes-xts-plain64 :64:logon:kubeveil:x " +
			"0 7:0 8192": "aes-xts-plain64 :64:logon:kubeveil:x 0 7:0 8192",
		"aes-xts-plain64": "aes-xts-plain64",
		"capi:gcm(aes)-random deadbeef 0 7:0 0 1 " +
			"integrity:28": "capi:gcm(aes)-random redacted 0 7:0 0 1 integrity:28",
	} {
		if got := redactParams("crypt", params); got != want {
			t.Errorf("%q became %q", params, got)
		}
	}
	if got := redactParams("linear", "7:0 8"); got != "7:0 8" {
		t.Errorf("another target: %q", got)
	}
}

// reply returns the response of the kernel that contains a table.
func reply(targets ...dmTarget) []byte {
	b := make([]byte, 4096)
	q := dmRequest{name: "n", uuid: "u", targets: targets}
	if err := q.encode(b); err != nil {
		panic(err)
	}
	// In a response, next is the offset from the first target. In a request, it is the offset from
	// its own target.
	at := 0
	for range targets {
		next := at + int(binary.NativeEndian.Uint32(b[dmIoctlSize+at+offTargetNext:]))
		binary.NativeEndian.PutUint32(b[dmIoctlSize+at+offTargetNext:], uint32(next))
		at = next
	}
	return b
}

func TestRequestAndReply(t *testing.T) {
	b := reply(dmTarget{0, 8, "crypt", "c 0011 0 7:0 0"}, dmTarget{8, 16, "error", ""})
	r := parseReply(b)
	if r.name != "n" || r.uuid != "u" || r.count != 2 || r.flags&dmSecureDataFlag == 0 {
		t.Errorf("reply %+v", r)
	}
	got, err := r.targets()
	want := []Target{{0, 4096, "crypt", "c redacted 0 7:0 0"}, {4096, 8192, "error", ""}}
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("targets %+v, %v", got, err)
	}
	if bytes.Trim(r.data, "\x00") != nil {
		t.Error("the buffer with the key was not wiped")
	}
	for name, q := range map[string]dmRequest{
		"long name":  {name: strings.Repeat("n", 128)},
		"long uuid":  {uuid: strings.Repeat("u", 129)},
		"long table": {targets: []dmTarget{{0, 8, "crypt", strings.Repeat("p", 4096)}}},
	} {
		if err := q.encode(make([]byte, 4096)); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}

func TestNames(t *testing.T) {
	entry := func(next uint32, name string) []byte {
		b := binary.NativeEndian.AppendUint64(nil, 0xfd00)
		b = binary.NativeEndian.AppendUint32(b, next)
		b = append(append(b, name...), 0)
		return append(b, make([]byte, 32-len(b))...)
	}
	for name, c := range map[string]struct {
		data []byte
		want string
		bad  bool
	}{
		"none":        {nil, "", false},
		"one":         {entry(0, "a"), "a", false},
		"two":         {append(entry(32, "a"), entry(0, "b")...), "a b", false},
		"cut off":     {entry(0, "a")[:8], "", true},
		"next behind": {entry(1000, "a"), "", true},
		"next within": {entry(1, "a"), "", true},
	} {
		got, err := (&dmReply{data: c.data}).names()
		if strings.Join(got, " ") != c.want || (err != nil) != c.bad {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func FuzzReply(f *testing.F) {
	f.Add(reply(dmTarget{0, 8, "crypt", "c 0011 0 7:0 0"}, dmTarget{8, 16, "error", ""}))
	f.Add(make([]byte, dmIoctlSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < dmIoctlSize {
			return
		}
		if names, err := parseReply(b).names(); err == nil && len(names) > len(b) {
			t.Error("more names than bytes")
		}
		targets, err := parseReply(b).targets()
		for _, target := range targets {
			if f := strings.Fields(target.params); err == nil && target.Type == "crypt" &&
				len(f) > 1 && f[1] != "redacted" && !strings.HasPrefix(f[1], ":") {
				t.Errorf("a key is in the output: %q", target.params)
			}
		}
	})
}

func TestEpochOf(t *testing.T) {
	u := crypt.UUID{1}
	for name, want := range map[string]struct {
		epoch uint64
		ok    bool
	}{
		Expected(u, 7, 0, 0, "", false).Name:             {7, true},
		Expected(u, 1<<64-1, 0, 0, "", false).Name:       {1<<64 - 1, true},
		Expected(crypt.UUID{2}, 7, 0, 0, "", false).Name: {0, false},
		NamePrefix(u):                          {0, false},
		NamePrefix(u) + "07":                   {7, false},
		NamePrefix(u) + "+7":                   {0, false},
		NamePrefix(u) + "7x":                   {0, false},
		"kubeveil-":                            {0, false},
		NamePrefix(u) + "18446744073709551616": {1<<64 - 1, false},
	} {
		if epoch, ok := EpochOf(u, name); ok != want.ok || ok && epoch != want.epoch {
			t.Errorf("%q: %d, %v", name, epoch, ok)
		}
	}
}

func TestDead(t *testing.T) {
	live := Expected(crypt.UUID{1}, 1, 4096, 0, "", false).Mapping()
	for name, c := range map[string]struct {
		targets []Target
		want    bool
	}{
		"live":        {live.Targets, false},
		"fenced":      {[]Target{{Type: "error"}}, true},
		"no table":    {nil, true},
		"half fenced": {[]Target{{Type: "error"}, {Type: "crypt"}}, false},
	} {
		if got := (Mapping{Targets: c.targets}).Dead(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
