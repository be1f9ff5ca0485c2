//! A step for Rivet without any crate: adds one to every cell of int64 columns that hold no NULL.
//!
//! It changes its input where it stands and answers with it: the plan is the schema as it came, and a batch of such
//! columns has nothing but their cells behind its two messages. A real step takes Arrow apart by the `arrow` crate.
#![no_std]
#![allow(static_mut_refs)]

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}

static mut TOP: usize = 1 << 20;

#[no_mangle]
pub extern "C" fn rivet_abi() -> i32 {
    1
}

#[no_mangle]
pub extern "C" fn rivet_alloc(length: u32) -> u32 {
    let pages = (length as usize >> 16) + 1;
    unsafe {
        let at = TOP;
        TOP += pages << 16;
        let needed = (TOP + 0xffff) >> 16;
        let there = core::arch::wasm32::memory_size(0);
        if needed > there && core::arch::wasm32::memory_grow(0, needed - there) == usize::MAX {
            return 0;
        }
        at as u32
    }
}

#[no_mangle]
pub extern "C" fn rivet_plan(at: u32, length: u32) -> u64 {
    answer(at, length)
}

#[no_mangle]
pub extern "C" fn rivet_transform(at: u32, length: u32) -> u64 {
    let bytes = unsafe { core::slice::from_raw_parts_mut(at as usize as *mut u8, length as usize) };
    let body = message_end(bytes, message_end(bytes, 0));
    let end = bytes.len() - 8; // the mark of the stream's end
    for cell in bytes[body..end].chunks_exact_mut(8) {
        let mut number = [0u8; 8];
        number.copy_from_slice(cell);
        let Some(next) = i64::from_le_bytes(number).checked_add(1) else {
            return 9; // a refusal: no place, and our number of it
        };
        cell.copy_from_slice(&next.to_le_bytes());
    }
    answer(at, length)
}

fn message_end(bytes: &[u8], start: usize) -> usize {
    let mut length = [0u8; 4];
    length.copy_from_slice(&bytes[start + 4..start + 8]);
    start + 8 + u32::from_le_bytes(length) as usize
}

fn answer(at: u32, length: u32) -> u64 {
    ((at as u64) << 32) | length as u64
}
