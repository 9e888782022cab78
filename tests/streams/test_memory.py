from streams.store import StreamStore
from streams.stores.memory import MemoryStore
from tests.streams.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    durable = False

    async def open_store(self) -> StreamStore:
        return MemoryStore()
