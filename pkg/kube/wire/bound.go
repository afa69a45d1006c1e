package wire

import "errors"

// Bounds of the kept content of one object, in elements. Each entry of a list or of a map counts as
// an element, and each elementText bytes of its text as another. If a bound is exceeded, the field
// is dropped, and the object reports that. An element takes 30 to 70 bytes of memory.
const (
	// MaxRules bounds the rules of a NetworkPolicy in both directions together: rules, peers,
	// ports, ranges, requirements and values. It allows 4,096 rules with a range and a port each
	// per direction.
	MaxRules = 32768
	// MaxSubjects bounds the podSelector of a NetworkPolicy.
	MaxSubjects = 2048
	// MaxLabels bounds the labels of an object, unless the Reader has another bound.
	MaxLabels = 256
	// MaxPorts bounds the named ports of a Pod.
	MaxPorts = 256
	// MaxAddresses bounds the addresses of a Pod or a Node.
	MaxAddresses = 1024
	// MaxService bounds the ports, addresses and ranges of a Service.
	MaxService = 4096
	// MaxEndpoints bounds the endpoints, hints and ports of an EndpointSlice. The API allows 1,000
	// endpoints, each with 8 hints for zones and 8 for nodes.
	MaxEndpoints = 20480

	// maxText bounds one string, in bytes. The API has no longer strings. A longer annotation is
	// read as empty. Any other longer string counts as exceeding the bound of its object.
	maxText = 1024
	// maxTypes bounds the policyTypes of a NetworkPolicy. The API has two types.
	maxTypes = 16

	elementText = 64
)

// errExcess means that a bound is exceeded. Exported functions never return it.
var errExcess = errors.New("too many elements")

// budget counts elements of one object, up to a bound.
type budget struct{ left int }

// take counts n elements. It returns errExcess if the bound is exceeded.
func (b *budget) take(n int) error {
	if b.left -= n; b.left < 0 {
		return errExcess
	}
	return nil
}

// word returns the value of a string that is not an entry of a list. It counts only text beyond the
// first element.
func (b *budget) word(f field) (string, error) {
	text, err := b.wordBytes(f)
	return string(text), err
}

// wordBytes is word without a copy: the text shares the memory of the message.
func (b *budget) wordBytes(f field) ([]byte, error) {
	if len(f.data) > maxText {
		return nil, errExcess
	}
	if err := b.take(len(f.data) / elementText); err != nil {
		return nil, err
	}
	return f.message()
}

// text returns the value of a string that is an entry of a list, and counts it.
func (b *budget) text(f field) (string, error) {
	if err := b.take(1); err != nil {
		return "", err
	}
	return b.word(f)
}

// excess reports whether err is errExcess, and returns any other error.
func excess(err error) (bool, error) {
	if errors.Is(err, errExcess) {
		return true, nil
	}
	return false, err
}
