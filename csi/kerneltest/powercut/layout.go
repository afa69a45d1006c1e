package powercut

import "encoding/binary"

// The disk whose writes are logged: two partitions, one for the volume and one for marks.
const (
	volumeStart = 1 << 20
	volumeSize  = 256 << 20
	marksStart  = volumeStart + volumeSize
	marksSize   = 1 << 20
	// DiskSize is the size of the disk, bytes.
	DiskSize = marksStart + marksSize
	// DiskSerial is the serial number of the disk on the machine.
	DiskSerial = "powercut"
)

// WorkloadEnv turns on TestWorkload, which formats partitions of the disk with the serial.
const WorkloadEnv = "KUBEVEIL_POWERCUT"

// PartitionTable is sector 0 of the disk.
func PartitionTable() []byte {
	b := make([]byte, minSector)
	for i, part := range [][2]uint32{{volumeStart, volumeSize}, {marksStart, marksSize}} {
		e := b[446+16*i:]
		e[4] = 0x83
		binary.LittleEndian.PutUint32(e[8:], part[0]/minSector)
		binary.LittleEndian.PutUint32(e[12:], part[1]/minSector)
	}
	b[510], b[511] = 0x55, 0xaa
	return b
}
