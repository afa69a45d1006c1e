package bpfmaps

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// formerMargin is the time in seconds before the last copy from which flows are copied again: the
// clock of programs may be a second behind.
const formerMargin = 2

// copyFlows copies flows from a former flow table to another one, and returns the number of copied
// entries. It skips flows that are over and, if f was copied before, flows that were not used since
// then. If to is the smaller one, it takes the flows that were used last.
func copyFlows(f *formerMap, to *ebpf.Map, now uint32) (copied int, err error) {
	timeouts := readFlowTimeouts()
	skip := func(k FlowKey, v FlowEntry) bool {
		if f.since > 0 && int32(v.Used-f.since) < -formerMargin {
			return true
		}
		flags, used := v.Flags, v.Used
		if k.Proto == unix.IPPROTO_TCP && v.Flags&FlowForward != 0 {
			flags, used = withReplies([]*ebpf.Map{f.Map}, k, v)
		}
		// Signed: a program may have used it in a later second than now.
		return int32(now-used) > timeouts.of(k.Proto, flags)
	}

	oldest := ^uint32(0)
	if to.MaxEntries() < f.MaxEntries() {
		if oldest, err = f.oldestOf(to.MaxEntries(), now, skip); err != nil {
			return 0, err
		}
	}

	errEach := f.eachFlow(func(k FlowKey, v FlowEntry) bool {
		if age(v, now) > oldest || skip(k, v) {
			return true
		}
		var did bool
		if did, err = copyFlow(to, k, v); did {
			copied++
		}
		return err == nil
	})
	return copied, errors.Join(errEach, err)
}

// eachFlow calls fn with each entry of a flow table until fn returns false.
func (f *formerMap) eachFlow(fn func(FlowKey, FlowEntry) bool) error {
	return each(map[string]*ebpf.Map{f.name: f.Map}, f.name, fn)
}

// age returns for how many seconds an entry was not used.
func age(v FlowEntry, now uint32) uint32 {
	return uint32(max(int32(now-v.Used), 0))
}

// oldestOf returns the age of the oldest entries that are copied to a map with room for this many.
// Younger ones all fit, with an eighth to spare: an LRU map evicts entries a little before it is
// full.
func (f *formerMap) oldestOf(room, now uint32, skip func(FlowKey, FlowEntry) bool) (uint32, error) {
	byAge := map[uint32]uint32{}
	err := f.eachFlow(func(k FlowKey, v FlowEntry) bool {
		if !skip(k, v) {
			byAge[age(v, now)]++
		}
		return true
	})
	if err != nil {
		return 0, err
	}

	left := room - room/8
	oldest := uint32(0) // the youngest entries are copied in any case
	for _, a := range slices.Sorted(maps.Keys(byAge)) {
		if byAge[a] > left {
			break
		}
		left -= byAge[a]
		oldest = a
	}
	return oldest, nil
}

// copyFlow copies an entry of a former flow table to another one, and reports whether it did.
func copyFlow(to *ebpf.Map, k FlowKey, v FlowEntry) (bool, error) {
	err := to.Update(k, v, ebpf.UpdateNoExist)
	if !errors.Is(err, ebpf.ErrKeyExist) {
		return err == nil, err
	}
	var have FlowEntry
	if err := to.Lookup(k, &have); errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil // a program has just deleted it
	} else if err != nil {
		return false, fmt.Errorf("read flow: %w", err)
	}
	if !supersedes(v, have) {
		return false, nil
	}
	return true, to.Update(k, v, ebpf.UpdateAny)
}

// supersedes reports whether a former entry takes the place of ours for the same key, because a
// replaced program used it later. In the same second, a flow that is not closing takes the place
// of another flow, or of the former connection of the same ends, that is.
func supersedes(former, ours FlowEntry) bool {
	const closing = flowClientFIN | flowBackendFIN | flowRST
	if former.Used != ours.Used {
		return int32(former.Used-ours.Used) > 0
	}
	return ours.Flags&closing != 0 && former.Flags&closing == 0
}
