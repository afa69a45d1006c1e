package wire

import (
	"bytes"
	"fmt"
)

// Event returns the type and the object of an event of a watch (WatchEvent of
// k8s.io.apimachinery.pkg.apis.meta.v1). They share the memory of the message.
func Event(message []byte) (eventType, object []byte, err error) {
	err = each(message, func(f field) (err error) {
		switch f.number {
		case 1:
			eventType, err = f.message()
		case 2:
			return f.only(1, func(f field) (err error) { // a RawExtension
				object, err = f.message()
				return err
			})
		}
		return err
	})
	return eventType, object, err
}

// Envelope returns the version, the kind and the content of an object with its envelope. They share
// the memory of the message.
func Envelope(message []byte) (version, kind, content []byte, err error) {
	rest, is := bytes.CutPrefix(message, magic)
	if !is {
		return nil, nil, nil, fmt.Errorf("%w: an object without an envelope", ErrMalformed)
	}
	err = each(rest, func(f field) (err error) {
		switch f.number {
		case 1:
			return f.within(func(f field) (err error) { // a TypeMeta
				switch f.number {
				case 1:
					version, err = f.message()
				case 2:
					kind, err = f.message()
				}
				return err
			})
		case 2:
			content, err = f.message()
		}
		return err
	})
	return version, kind, content, err
}
