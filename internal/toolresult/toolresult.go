package toolresult

import "fmt"

// Sent is the result of echo-send.
type Sent struct {
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
	Bytes    int64   `json:"bytes"`
	Millis   float64 `json:"millis"`
	// Local is the sender's address and port, before any translation.
	Local string `json:"local"`
}

// Tried is the result of echo-try for one echo server.
type Tried struct {
	Proto string `json:"proto"`
	To    string `json:"to"`
	// Tried counts the finished attempts, Answered those of them that were answered.
	Tried    uint64 `json:"tried"`
	Answered uint64 `json:"answered"`
	// Error is the error of the last failed attempt.
	Error string `json:"error,omitempty"`
}

// Flow is the result of echo-flow for one flow. Its counters begin at the flow's start.
type Flow struct {
	Proto string `json:"proto"`
	To    string `json:"to"`
	// Sent counts the records that were sent, Answered those that came back. The newest UDP records
	// may still be under way.
	Sent     uint64 `json:"sent"`
	Answered uint64 `json:"answered"`
	// MaxGapMillis is the longest time without an answer, including the time since the last answer.
	// It is reset when all flows have their first answer, so that the start of containers does not
	// count as a gap.
	MaxGapMillis float64 `json:"maxGapMillis"`
	// Lost holds the first runs of UDP records without an answer.
	Lost []LostRun `json:"lost,omitempty"`
	// Broken is the error with which a TCP connection ended. The connection is not opened again.
	Broken string `json:"broken,omitempty"`
}

// LostRun is a run of consecutive records without an answer.
type LostRun struct {
	// At is the time since the flow's start at which the run's first record was sent.
	At      float64 `json:"atMillis"`
	Records uint64  `json:"records"`
}

// String returns the run for errors.
func (r LostRun) String() string { return fmt.Sprintf("%d from %.1f s on", r.Records, r.At/1e3) }

// Census is the result of name-count.
type Census struct {
	// Names counts the answers by the server's name. Sources counts them by the source address that
	// the server saw.
	Names   map[string]int `json:"names"`
	Sources map[string]int `json:"sources"`
	// Failed counts the requests without an answer. Refused counts the failed requests whose
	// connection was refused. Error is the first error.
	Failed  int    `json:"failed"`
	Refused int    `json:"refused"`
	Error   string `json:"error"`
	// SlowestMillis is the duration of the slowest request, answered or not.
	SlowestMillis float64 `json:"slowestMillis"`
}

// Kept is the result of name-keep.
type Kept struct {
	Answered   uint64 `json:"answered"`
	Unanswered uint64 `json:"unanswered"`
	// Error is the error of the first request without an answer.
	Error string `json:"error"`
	// Aborted counts how often the kernel aborted a connected UDP socket and the program opened a
	// new one.
	Aborted uint64 `json:"aborted"`
	// Names are the servers that answered, in their order. Each change of the server adds a name.
	Names []string `json:"names"`
	// MaxGapMillis is the longest time between two answers.
	MaxGapMillis float64 `json:"maxGapMillis"`
}

// KeptAPI is the result of tls-hold. Times are Unix times.
type KeptAPI struct {
	// Opened is the number of held connections. Closed holds the times at which some of them ended.
	Opened int     `json:"opened"`
	Closed []int64 `json:"closed"`
	// Asked is the number of new connections. Failed holds the start times of those that failed.
	Asked  int     `json:"asked"`
	Failed []int64 `json:"failed"`
}

// Held is the result of tcp-hold.
type Held struct {
	Records      uint64  `json:"records"`
	MaxGapMillis float64 `json:"maxGapMillis"`
	Local        string  `json:"local"`
}

// Drained is the result of udp-count. Missing counts the datagrams with lower numbers than Highest
// that did not arrive.
type Drained struct {
	Received     uint64  `json:"received"`
	Highest      uint64  `json:"highest"`
	Missing      uint64  `json:"missing"`
	MaxGapMillis float64 `json:"maxGapMillis"`
}
