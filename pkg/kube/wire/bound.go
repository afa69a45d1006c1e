package wire

import "errors"

// Bounds of what is kept of one object. They are counted in elements: each entry of a list or of a
// map, and again each elementText bytes of its text. Beyond a bound the field is dropped, and the
// object says so. An element is 30 to 70 bytes of memory.
const (
	// MaxRules bounds the rules of a NetworkPolicy, in both directions: rules, peers, ports,
	// ranges, requirements and values. It admits 4,096 rules with a range and a port each in
	// both directions.
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
	// MaxEndpoints bounds the endpoints, hints and ports of an EndpointSlice; the API has 1,000
	// endpoints with 8 hints for zones and 8 for nodes each.
	MaxEndpoints = 20480

	// maxText bounds one string, in bytes; the API has none that long. A longer annotation is read
	// as empty, and any other string exceeds the bound of its object.
	maxText = 1024
	// maxTypes bounds the policyTypes of a NetworkPolicy; the API has two.
	maxTypes = 16

	elementText = 64
)

// errExcess reports that a bound is exceeded. It never leaves the package.
var errExcess = errors.New("too many elements")

// budget counts elements of one object, up to a bound.
type budget struct{ left int }

// take counts n elements. It returns errExcess beyond the bound.
func (b *budget) take(n int) error {
	if b.left -= n; b.left < 0 {
		return errExcess
	}
	return nil
}

// word counts a string that is not repeated by the text beyond one element, and returns its value.
func (b *budget) word(f field) (string, error) {
	if len(f.data) > maxText {
		return "", errExcess
	}
	if err := b.take(len(f.data) / elementText); err != nil {
		return "", err
	}
	return f.text()
}

// text counts a string and returns its value.
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
