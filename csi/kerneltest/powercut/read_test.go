package powercut

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ErrLog means that bytes are not a log, or that a log is inconsistent.
var ErrLog = errors.New("not a log of writes")

// The format of Linux' dm-log-writes (drivers/md/dm-log-writes.c), which QEMU's blklogwrites
// writes. It is little endian. Sector 0 has a super block. Then follow entries, each a sector with
// a header and the sectors that were written.
const (
	superMagic   = 0x6a736677736872
	superVersion = 1
	superSize    = 28
	entrySize    = 32
	minSector    = 512
	maxSector    = 64 << 10
)

// Flags are the kind and options of an entry. A plain write has none.
type Flags uint64

// The flags.
const (
	Flush Flags = 1 << iota
	FUA
	Discard
	Mark

	// metadata marks writes that the file system calls metadata. It has no effect here.
	metadata
	known = Flush | FUA | Discard | Mark | metadata
)

// Entry is one request to the disk.
type Entry struct {
	// Offset and Length are the range on the disk in bytes.
	Offset, Length int64
	Flags          Flags
	// at is the offset of the data in the log.
	at int64
}

// Log is a log of the requests to a disk, in the order in which they were done.
type Log struct {
	Entries []Entry
	from    io.ReaderAt
}

// Read reads the headers of the entries in a log of size bytes. Data reads their data later. Read
// leaves out entries beyond the count in the super block, because they were not flushed.
func Read(from io.ReaderAt, size int64) (*Log, error) {
	var super [superSize]byte
	if _, err := from.ReadAt(super[:], 0); err != nil {
		return nil, fmt.Errorf("%w: super block: %w", ErrLog, err)
	}

	le := binary.LittleEndian
	sector := int64(le.Uint32(super[24:]))
	count := le.Uint64(super[16:])
	switch {
	case le.Uint64(super[:]) != superMagic || le.Uint64(super[8:]) != superVersion:
		return nil, fmt.Errorf("%w: magic %#x, version %d", ErrLog, le.Uint64(super[:]),
			le.Uint64(super[8:]))
	case sector < minSector || sector > maxSector || sector&(sector-1) != 0:
		return nil, fmt.Errorf("%w: sectors of %d bytes", ErrLog, sector)
	case count > uint64(size/sector):
		return nil, fmt.Errorf("%w: %d entries in %d bytes", ErrLog, count, size)
	}

	l := &Log{from: from}
	at := sector
	for range count {
		e, next, err := readEntry(from, at, sector, size)
		if err != nil {
			return nil, fmt.Errorf("%w: entry %d at %d: %w", ErrLog, len(l.Entries), at, err)
		}
		l.Entries = append(l.Entries, e)
		at = next
	}

	return l, nil
}

// readEntry reads the entry at offset at of the log, and returns the offset of the next entry.
func readEntry(from io.ReaderAt, at, sector, size int64) (e Entry, next int64, err error) {
	var header [entrySize]byte
	if _, err := from.ReadAt(header[:], at); err != nil {
		return e, 0, err
	}
	le := binary.LittleEndian
	start, n, flags := le.Uint64(header[:]), le.Uint64(header[8:]), Flags(le.Uint64(header[16:]))
	// No disk has more sectors, and larger numbers would overflow.
	const most = 1 << 40
	if start > most || n > most || flags&^known != 0 {
		return e, 0, fmt.Errorf("%d sectors at %d, flags %#x", n, start, uint64(flags))
	}
	e = Entry{Offset: int64(start) * sector, Length: int64(n) * sector, Flags: flags,
		at: at + sector}
	next = e.at
	if flags&Discard == 0 {
		next += e.Length
	}
	if next > size {
		return e, 0, fmt.Errorf("it ends at %d of %d bytes", next, size)
	}
	return e, next, nil
}

// Data returns the bytes that the entry wrote, or nil for a discard.
func (l *Log) Data(e Entry) ([]byte, error) {
	if e.Flags&Discard != 0 {
		return nil, nil
	}
	b := make([]byte, e.Length)
	if _, err := l.from.ReadAt(b, e.at); err != nil {
		return nil, fmt.Errorf("%w: data at %d: %w", ErrLog, e.at, err)
	}
	return b, nil
}
