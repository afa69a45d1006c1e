package noise

import (
	"bytes"
	"encoding/binary"
	"time"
)

// tai64nBase is the label of 1970-01-01 00:00:00 UTC: 2^62 plus the 10 s by which TAI was ahead of
// UTC.
const tai64nBase = 0x400000000000000a

// granularity is the resolution of timestamps in ns, 2^24 ns or about 17 ms. It is coarse so that a
// timestamp does not reveal when exactly a handshake began (whitepaper, section 5.4.2).
const granularity = 1 << 24

// Stamp returns the label of t. If that is not later than last, it returns the next label after
// last, so that handshakes still work after the clock was set back.
func Stamp(t time.Time, last Timestamp) Timestamp {
	var out Timestamp
	binary.BigEndian.PutUint64(out[:], tai64nBase+uint64(t.Unix()))
	binary.BigEndian.PutUint32(out[8:], uint32(t.Nanosecond())&^(granularity-1))
	if out.After(last) {
		return out
	}
	out = last
	nano := binary.BigEndian.Uint32(out[8:]) + granularity
	if nano >= 1e9 {
		binary.BigEndian.PutUint64(out[:], binary.BigEndian.Uint64(out[:])+1)
		nano = 0
	}
	binary.BigEndian.PutUint32(out[8:], nano)
	return out
}

// After reports whether t is later than o.
func (t Timestamp) After(o Timestamp) bool { return bytes.Compare(t[:], o[:]) > 0 }
