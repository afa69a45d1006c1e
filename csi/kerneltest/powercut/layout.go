package powercut

import "encoding/binary"

// The layout, in bytes, of the disk whose writes are logged. It has one partition for the volume
// and one for marks.
const (
	volumeStart = 1 << 20
	volumeSize  = 256 << 20
	marksStart  = volumeStart + volumeSize
	marksSize   = 1 << 20
	// DiskSize is the size of the disk in bytes.
	DiskSize = marksStart + marksSize
	// sector is the unit in which a partition table counts.
	sector = 512
	// DiskSerial is the serial number of the disk in the virtual machine.
	DiskSerial = "powercut"
)

// WorkloadEnv is the environment variable that enables TestWorkload, which formats the partitions
// of the disk with DiskSerial.
const WorkloadEnv = "KUBEVEIL_POWERCUT"

// PartitionTable returns sector 0 of the disk.
func PartitionTable() []byte {
	b := make([]byte, sector)
	for i, part := range [][2]uint32{{volumeStart, volumeSize}, {marksStart, marksSize}} {
		e := b[446+16*i:]
		e[4] = 0x83
		binary.LittleEndian.PutUint32(e[8:], part[0]/sector)
		binary.LittleEndian.PutUint32(e[12:], part[1]/sector)
	}
	b[510], b[511] = 0x55, 0xaa
	return b
}
