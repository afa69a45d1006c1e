package engine

// StagedBytes returns how much waits for sessions, bytes.
func (d *Device) StagedBytes() int64 { return d.stagedBytes.Load() }
