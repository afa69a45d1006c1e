package mount

import (
	"encoding/binary"
	"testing"
)

func TestParseSuper(t *testing.T) {
	page := func(edit func(b []byte)) []byte {
		b := make([]byte, superblocks)
		edit(b)
		return b
	}
	ext4 := func(b []byte) {
		binary.LittleEndian.PutUint16(b[ext4Magic:], 0xef53)
		binary.LittleEndian.PutUint32(b[ext4Blocks:], 1000)
		binary.LittleEndian.PutUint32(b[ext4LogBlock:], 2)
	}

	xfs := func(b []byte) {
		copy(b, xfsMagic)
		binary.BigEndian.PutUint32(b[xfsBlockSize:], 4096)
		binary.BigEndian.PutUint64(b[xfsBlocks:], 1000)
	}
	for name, c := range map[string]struct {
		b    []byte
		want Found
	}{
		"zeros":        {page(func([]byte) {}), Found{}},
		"nothing":      {nil, Found{}},
		"half a page":  {page(ext4)[:2048], Found{}},
		"ext4":         {page(ext4), Found{Ext4, 4096000}},
		"xfs":          {page(xfs), Found{XFS, 4096000}},
		"LUKS in LUKS": {page(func(b []byte) { copy(b, "LUKS\xba\xbe") }), Found{}},
		"ext4 of 16 TiB and more": {page(func(b []byte) {
			ext4(b)
			binary.LittleEndian.PutUint32(b[ext4Incompat:], ext4Incompat64)
			binary.LittleEndian.PutUint32(b[ext4BlocksHigh:], 1)
		}), Found{Ext4, 4096 * (1<<32 + 1000)}},
		"ext4 with absurd blocks": {page(func(b []byte) { ext4(b); b[ext4LogBlock] = 200 }),
			Found{FS: Ext4}},
		"xfs larger than all": {page(func(b []byte) { xfs(b); b[xfsBlocks] = 0xff }),
			Found{FS: XFS}},
	} {
		if got := parseSuper(c.b); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func FuzzParseSuper(f *testing.F) {
	b := make([]byte, superblocks)
	f.Add(b)
	copy(b, xfsMagic)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if found := parseSuper(b); found.Size < 0 || found.FS == "" && found.Size != 0 ||
			found.FS != "" && !found.FS.Known() {
			t.Errorf("%+v", found)
		}
	})
}
