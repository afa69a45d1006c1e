package stream

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrMalformed matches the error for bytes that are not protobuf, or are cut short.
var ErrMalformed = errors.New("malformed protobuf")

// Each calls visit for each length-delimited field in the next size bytes of r. A size of
// math.MaxInt64 means up to the end of r. visit reports whether it has read the field from r;
// otherwise Each skips it.
func Each(r *bufio.Reader, size int64, visit func(number, size int64) (bool, error)) error {
	for size > 0 {
		tag, n, err := streamVarint(r)
		if errors.Is(err, io.EOF) && n == 0 && size > math.MaxInt64/2 {
			return nil
		}
		if err != nil {
			return err
		}
		size -= n

		var length int64
		wireType := protowire.Type(tag & 7)
		switch wireType {
		case protowire.VarintType:
			_, n, err = streamVarint(r)
			size -= n
		case protowire.Fixed64Type:
			length = 8
		case protowire.Fixed32Type:
			length = 4
		case protowire.BytesType:
			length, n, err = streamLength(r)
			size -= n
		default:
			err = fmt.Errorf("%w: field %d has wire type %d", ErrMalformed, tag>>3, wireType)
		}
		if err != nil {
			return err
		}

		if size -= length; size < 0 {
			return fmt.Errorf("%w: a field of %d bytes is longer than its message", ErrMalformed,
				length)
		}
		read := false
		if wireType == protowire.BytesType {
			read, err = visit(int64(tag>>3), length)
		}
		if err == nil && !read {
			_, err = io.CopyN(io.Discard, r, length)
		}
		if err != nil {
			return cutShort(err)
		}
	}
	return nil
}

// streamVarint reads a varint, and returns it and its number of bytes.
func streamVarint(r *bufio.Reader) (v uint64, n int64, err error) {
	counted := countingReader{r: r}
	v, err = binary.ReadUvarint(&counted)
	if counted.n > 0 {
		err = cutShort(err)
	}
	return v, counted.n, err
}

// streamLength is streamVarint for the length of a field.
func streamLength(r *bufio.Reader) (length, n int64, err error) {
	v, n, err := streamVarint(r)
	if err == nil && v > math.MaxInt64/4 {
		err = fmt.Errorf("%w: a field of %d bytes", ErrMalformed, v)
	}
	return int64(v), n, cutShort(err)
}

// cutShort turns io.EOF into ErrMalformed, for places where the stream must not end.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it is cut short", ErrMalformed)
	}
	return err
}

type countingReader struct {
	r io.ByteReader
	n int64
}

func (c *countingReader) ReadByte() (byte, error) {
	b, err := c.r.ReadByte()
	if err == nil {
		c.n++
	}
	return b, err
}

// ReadInto reads size bytes into b, or into a new slice if b is too small. A size above limit is an
// error.
func ReadInto(r io.Reader, b []byte, size, limit int64) ([]byte, error) {
	if size > limit {
		return b, fmt.Errorf("%w: an object of %d bytes, more than %d", ErrMalformed, size, limit)
	}
	if int64(cap(b)) < size {
		b = make([]byte, size)
	}
	b = b[:size]
	_, err := io.ReadFull(r, b)
	return b, err
}
