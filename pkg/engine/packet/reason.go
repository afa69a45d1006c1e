package packet

// Reason is the reason why a packet was refused. Zero means that it was accepted.
type Reason uint8

// Reasons.
const (
	None Reason = iota
	TooShort
	BadVersion
	BadHeaderLength
	BadTotalLength
	BadChecksumOffset
	BadGSO
	BadSegmentSize
	TooManySegments
	reasons
)

// Reasons is the number of reasons, None included.
const Reasons = int(reasons)

var reasonNames = [reasons]string{"none", "too_short", "bad_version", "bad_header_length",
	"bad_total_length",
	"bad_checksum_offset", "bad_gso", "bad_segment_size", "too_many_segments"}

// String returns the name of the reason's counter.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "unknown"
}
